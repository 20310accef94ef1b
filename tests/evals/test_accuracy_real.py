"""Whole iterations of ReaL's heuristic: its plan, and how far forecasts may be off."""

from rlplan.evals.reading import held_tables, read_table
from rlplan.evals.tables.realhf_iteration import is_fitted, plan_of
from rlplan.planner.measured.rows import summarise

TABLE = next(path for path in held_tables() if path.stem == "realhf_iteration")
RECORD = {
    "case": "scale_actor", "gen_len": "384", "batch": "256", "actor_B": "34", "critic_B": "7",
    "ref_B": "34", "reward_B": "7", "gpus": "32", "system": "ReaL-Heuristic", "iter_s": "50.53",
    "prompt_len": "128",
}  # fmt: skip


def test_the_heuristic_puts_tp_in_nodes_and_pp_over_them():
    plan = plan_of(RECORD)
    assert {(each.tp, each.pp, each.dp) for each in plan.tasks.values()} == {(8, 4, 1)}
    # 4 mini-batches of 64 sequences in 2 x PP micro-batches; inference in PP of them.
    assert plan.tasks["actor.update"].micro_batch == 8
    assert plan.tasks["reward.compute_reward"].micro_batch == 64
    assert plan.tasks["reward.compute_reward"].offload
    assert not plan.tasks["critic.compute_values"].offload


def test_held_back_iterations_are_within_a_tenth():
    rows = [row for row in read_table(TABLE) if row.forecast is not None]
    held = [row for row in rows if not row.fitted]
    assert (len(rows), len(held)) == (12, 6)
    summary = summarise(held)
    assert summary.median_error < 0.04
    assert summary.worst_error < 0.11


def test_only_rows_of_the_case_that_was_fitted_count_as_fitted():
    assert is_fitted({**RECORD, "gen_len": "384"})
    assert not is_fitted({**RECORD, "gen_len": "128"})
    assert not is_fitted({**RECORD, "case": "scale_critic"})


def test_plans_that_were_not_published_are_skipped_with_the_reason():
    skipped = summarise(read_table(TABLE)).skipped_reasons
    assert skipped == {"its parallel sizes are not published": 35}
