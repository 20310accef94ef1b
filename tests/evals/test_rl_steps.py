"""Published steps of RL frameworks: settings become jobs and plans, and forecasts come near."""

import csv
import statistics
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.evals.reading import all_tables, held_tables, read_table
from rlplan.files.frozen import FrozenDict
from rlplan.planner.measured.framework_runs import (
    UnknownSettingError,
    device_sheet,
    job_of,
    model_sheet,
    overlap_of,
    plan_of,
)
from rlplan.planner.measured.reading import open_table
from rlplan.planner.measured.rows import summarise
from rlplan.planner.measured.tables import rl_steps, rl_steps_more
from rlplan.profiles.sheets import load_framework
from rlplan.rules import check_plan
from rlplan.simulator.calibration import calibrate
from rlplan.simulator.observations import observations_of

TABLE = next(path for path in held_tables() if path.stem == "rl_steps")
RECORDS = {record["id"]: record for record in csv.DictReader(TABLE.open(encoding="utf-8"))}
NEMO_8B = "nemov0.5_H100_bf16_Llama3.1-8B_on_16"


@cache
def every_row():
    """Return the rows of the table, each judged after calibration too."""
    return read_table(TABLE)


def row_of(name, **changes):
    """Return the row of a record with some cells changed."""
    (row,) = rl_steps.rows_of({**RECORDS[name], **changes})
    return row


@pytest.mark.parametrize(
    ("published", "sheet"),
    [
        ("Llama3.1-8B-Instruct", "llama-3.1-8b"),
        ("Llama3.1-70B", "llama-3.1-70b"),
        ("Qwen2.5-7B-Instruct (ReTool SFT)", "qwen2.5-7b"),
        ("Qwen3-235B", "qwen3-235b-a22b"),
        ("DeepSeek-V3 671B", "deepseek-v3"),
        ("deepseek-llm-7b-chat", "deepseek-llm-7b"),
        ("Qwen/Qwen2.5-32B", "qwen2.5-32b"),
        ("Llama2-7B", "llama-2-7b"),
    ],
)
def test_published_names_of_models_lead_to_sheets(published, sheet):
    assert model_sheet(published) == sheet


@pytest.mark.parametrize(
    ("published", "sheet"),
    [
        ("H100", "h100-80gb-sxm"),
        ("GB200", "gb200"),
        ("H20-96GB", "h20"),
        ("A100/A800-80GB", "a100-80gb-sxm"),
        ("A800-80GB", "a800-80gb"),
        ("MI300X", "mi300x"),
        ("H800", "h800"),
    ],
)
def test_published_names_of_devices_lead_to_sheets(published, sheet):
    assert device_sheet(published) == sheet


def test_what_no_sheet_knows_is_named():
    with pytest.raises(UnknownSettingError, match="Llama9"):
        model_sheet("Llama9-1T")
    with pytest.raises(UnknownSettingError, match="unnamed"):
        device_sheet("unnamed")
    assert row_of("log05b_1024").skipped == "no sheet is of the device unnamed"
    assert row_of("fa32c").skipped == "mean response: not published"
    assert row_of(NEMO_8B, trainer="jax").skipped == "no sheet is of nemo-rl with jax"
    taken = row_of(NEMO_8B, train_pp="7")
    assert taken.skipped == "the trainer's sizes take 7 GPUs each, which do not divide its 16"


@pytest.mark.full
def test_every_row_of_known_settings_has_a_forecast():
    found = [row for row in every_row() if row.predicted is not None]
    assert len(found) == 16
    assert {row.group.partition(",")[0] for row in found} == {"verl", "nemo-rl"}


def test_a_row_becomes_the_plan_that_was_run():
    run = rl_steps.run_of(RECORDS[NEMO_8B])
    job = job_of(run)
    plan = plan_of(run, job)
    check_plan(plan)
    update, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
    assert (update.tp, update.pp, update.dp, update.token_budget) == (1, 2, 8, 4096)
    assert update.recompute == "full"
    assert plan.tasks["reference.compute_log_prob"].token_budget == 2 * 4096
    assert (generate.tp, generate.dp, generate.memory_fraction) == (1, 16, 0.6)
    assert plan.tasks["actor.compute_log_prob"].token_budget == 2 * 4096
    assert (job.workload.updates, job.workload.max_total_tokens) == (4, 4096)


@pytest.mark.full
def test_steps_come_near_and_nearer_after_calibration():
    summary = summarise(every_row())
    assert summary.median_error is not None
    assert summary.median_error < 0.20
    assert summary.worst_error is not None
    assert summary.worst_error < 0.45
    after = summary.after_calibration
    assert after.median_error is not None
    assert after.median_error < 0.11
    assert after.p90_error is not None
    assert after.p90_error < 0.25
    assert summary.coverage is not None
    assert summary.coverage >= 0.7


def test_a_pass_more_and_a_longer_mean_take_longer():
    usual = row_of(NEMO_8B).predicted
    assert usual is not None
    longer = row_of(NEMO_8B, mean_response="2000").predicted
    shorter = row_of(NEMO_8B, on_policy_ratio_forced="True").predicted
    assert longer is not None
    assert shorter is not None
    assert shorter < usual < longer


@pytest.mark.parametrize(
    ("name", "mode", "parts", "staleness", "in_flight", "old_log_prob"),
    [
        ("v1sync", "sync", 1, 0.0, "drain", None),
        # V1 begins one batch ahead, of four parts between two syncs: 3 updates behind, and 4 more.
        ("v1sep", "async", 4, 7.0, "recompute", None),
        ("fa64_64", "async", 4, 5.0, "recompute", "engine"),
        ("fa64_st0", "streaming", 1, 0.0, "drain", "engine"),
        ("osop_fsdp_a", "one-step-off", 1, 0.0, "drain", None),
    ],
)
def test_modes_are_played_as_what_they_are(name, mode, parts, staleness, in_flight, old_log_prob):
    overlap = overlap_of(RECORDS[name], load_framework("verl-fsdp"))
    assert (overlap.mode, overlap.parts, overlap.in_flight) == (mode, parts, in_flight)
    assert overlap.staleness == staleness
    assert overlap.old_log_prob == old_log_prob


@given(st.integers(1, 16), st.floats(0.05, 4.0))
def test_a_bound_in_batches_is_the_plans_in_iterations(parts, ahead):
    record = {
        **RECORDS["v1sep"],
        "mode_text": f"sync_step {parts}",
        "staleness_fraction": str(ahead),
    }
    drains = replace(load_framework("verl-fsdp"), in_flight="drain")
    overlap = overlap_of(record, drains)
    assert overlap.in_flight == "drain"
    # What a plan says of itself in verl's words.
    assert (overlap.staleness - (parts - 1)) / parts == pytest.approx(ahead)


def test_ages_in_steps_are_read_too():
    record = {**RECORDS["v1sep"], "mode_text": "async 8off", "staleness_fraction": ""}
    assert overlap_of(record, load_framework("nemo-rl")).staleness == 8.0


def test_one_step_off_begins_the_next_batch_early_only_where_weights_come_in_flight():
    record, sheet = {**RECORDS[NEMO_8B], "mode": "one-step-off"}, load_framework("nemo-rl")
    overlap = overlap_of(record, sheet)
    assert (overlap.mode, overlap.staleness, overlap.in_flight) == ("async", 1.0, "keep")
    for other in (replace(sheet, in_flight="drain"), replace(sheet, takes_batches=False)):
        assert overlap_of(record, other).mode == "one-step-off"


@pytest.mark.full
def test_an_asynchronous_step_is_forecast_as_one():
    sync, overlapped = row_of("v1sync"), row_of("v1sep")
    assert sync.predicted is not None
    assert overlapped.predicted is not None
    speed_up = sync.predicted / overlapped.predicted
    assert speed_up == pytest.approx(547.0 / 338.4, rel=0.20)


def test_odd_cells_leave_a_row_out_and_never_a_table():
    assert row_of(NEMO_8B, gpus="8+8").skipped == "8+8 is no number"
    assert row_of(NEMO_8B, train_ep="auto").skipped == "auto is no number"
    assert row_of(NEMO_8B, step_s="").skipped == "the step is not published"
    assert row_of(NEMO_8B, step_s="90-110").measured == 100.0


def test_narrow_formats_are_faster():
    usual, narrow = row_of(NEMO_8B).predicted, row_of(NEMO_8B, precision="fp8").predicted
    rollout = row_of(NEMO_8B, precision="bf16, fp8 rollout").predicted
    assert usual is not None
    assert narrow is not None
    assert rollout is not None
    assert narrow < rollout < usual


def test_the_held_table_names_the_source_of_every_row():
    assert all(record["source"] for record in RECORDS.values())
    assert Path(TABLE).name == "rl_steps.csv"


def test_the_same_steps_are_read_from_other_columns():
    cells = {
        "system": "NeMo-RL", "version": "v0.5", "model": "Llama3.1-8B", "gpu": "H100", "gpus": "16",
        "algo": "GRPO", "prompts_per_step": "64", "samples_per_prompt": "32", "mini_batch": "16",
        "prompt_mean": "127", "resp_mean": "1019", "resp_max_cap": "3969", "trainer": "Megatron",
        "train_layout": "TP1 PP2", "rollout_layout": "TP1", "step_s": "92.8",
    }  # fmt: skip
    (row,) = rl_steps_more.rows_of(defaultdict(str, cells))
    assert row.measured_seconds == 92.8
    assert row.error_fraction is not None
    assert abs(row.error_fraction) < 0.2
    (left_out,) = rl_steps_more.rows_of(defaultdict(str, {**cells, "turns": "max 4"}))
    assert left_out.skipped == rl_steps_more.OBSERVATIONS


@pytest.mark.parametrize(
    ("version", "sheet"),
    [
        ("v0.3.0", "nemo-rl-megatron-0.3"),
        ("v0.4.0", "nemo-rl-megatron-0.4"),
        ("v0.5.0", "nemo-rl-megatron-0.5"),
        ("v0.6.0", "nemo-rl-megatron-0.6"),
        ("v0.7.0", "nemo-rl-megatron"),
        ("main", "nemo-rl-megatron"),
    ],
)
def test_versions_of_nemo_rl_lead_to_the_sheet_of_their_day(version, sheet):
    assert rl_steps.run_of({**RECORDS[NEMO_8B], "version": version}).framework == sheet


def test_a_trainer_without_a_sheet_of_a_version_has_its_framework_s_own():
    record = {**RECORDS[NEMO_8B], "trainer": "fsdp2", "version": "v0.6.0"}
    assert rl_steps.run_of(record).framework == "nemo-rl-dtensor"


def test_groups_that_are_sampled_again_and_eager_engines_are_read_from_notes():
    notes = "rounds of 3 x 64 prompts (batch_multiplier 3); enforce_eager"
    record = {**RECORDS[NEMO_8B], "algorithm": "DAPO", "notes": notes}
    run = rl_steps.run_of(record)
    job = job_of(run)
    assert (run.rounds, job.dynamic_sampling.expected_rounds) == (3, 3)
    assert job.engines.generate == "vllm-0.11-eager"
    usual = rl_steps.run_of(RECORDS[NEMO_8B])
    assert (usual.rounds, job_of(usual).dynamic_sampling) == (1, None)


@pytest.mark.full
def test_no_table_of_steps_is_further_off_after_calibration_on_another_step_of_its_site():
    """Held as a law on all pairs of rows of one framework and GPU, across tables too: a factor is a bonus, never a loss."""
    names = ("rl_steps", "rl_steps_nemo", "rl_steps_nemo_04")
    rows = [(name, row) for name in names for row in forecast_steps(name)]
    before: dict[str, list[float]] = {name: [] for name in names}
    after: dict[str, list[float]] = {name: [] for name in names}
    sites = [calibrate(observations_of(row)).calibration for _, row in rows]
    for place, (name, row) in enumerate(rows):
        partners = [
            site
            for other, site in enumerate(sites)
            if other != place and rows[other][1].group == row.group
        ]
        if partners:
            off = abs(row.error_fraction)
            calibrated = statistics.median(error_at(row, site) for site in partners)
            assert calibrated < off + 0.03, row.label
            before[name].append(off)
            after[name].append(calibrated)
    for name in names:
        for of in (statistics.median, statistics.fmean, max):
            assert of(after[name]) <= of(before[name]) + 1e-9, name


def forecast_steps(name):
    """Return the rows of a table that have a forecast and say what was measured."""
    table = next(path for path in held_tables() if path.stem == name)
    found = open_table(table, all_tables()).rows()
    return [row for row in found if row.error_fraction is not None and row.group]


def error_at(row, site):
    """Return a row's absolute error where each part of its step takes its factor's times as long."""

    def at(part):
        factor = site.overhead if part.host else part.kind and site.factor(part.kind, part.engine)
        return part.seconds * (factor.value if factor else 1.0)

    bare = replace(
        row,
        stages=FrozenDict(
            {name: replace(stage, measured_seconds=None) for name, stage in row.stages.items()}
        ),
    )
    (step,) = observations_of(bare)
    return abs(sum(map(at, step.parts)) / row.measured_seconds - 1)
