"""Rows of text that the page, Markdown and the terminal share."""

from dataclasses import replace

import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.plan import TaskPlan
from rlplan.reports.tables import plans as tables
from rlplan.reports.tables import searches as search_tables
from rlplan.reports.tables import wording
from rlplan.results.measurement import Comparison, ComparisonRow
from rlplan.units import ShownAs
from rlplan.workload import Empirical, Lognormal, Uniform
from tests.reports.run_samples import cpu_forecast, cpu_plan, cpu_run
from tests.reports.samples import gpu_forecast, gpu_plan, gpu_search


def comparison_row(name, error):
    return ComparisonRow(
        name=name, pool="p0", forecast_seconds=1.23, measured_median_seconds=1.25,
        measured_interval_seconds=(1.2, 1.3), error_fraction=error, source="measured",
    )  # fmt: skip


COMPARISON = Comparison(
    rows=(comparison_row("actor.generate", 0.034),),
    iteration=comparison_row("iteration", -0.016),
    warmup_iterations=2,
    compared_iterations=10,
)


def test_the_error_table_ends_with_the_iteration():
    table = tables.error_table(COMPARISON)
    assert table.rows == (
        ("actor.generate", "p0", "1.23 s", "1.25 s", "1.20 s to 1.30 s", "+3.4 %", "measured"),
        (
            "iteration",
            "p0",
            "1.23 s",
            "1.25 s",
            "1.20 s to 1.30 s",
            "\N{MINUS SIGN}1.6 %",
            "measured",
        ),
    )
    assert table.strong_rows == {1}
    assert [column.title for column in table.columns if column.is_figure] == [
        "Forecast", "Measured median", "Measured p10 to p90", "Error",
    ]  # fmt: skip


def test_the_verdict_is_one_sentence():
    assert wording.verdict(cpu_forecast(), COMPARISON) == (
        "Forecast 1.23 s, measured 1.25 s: off by \N{MINUS SIGN}1.6 %."
    )


def test_the_memory_table_says_by_how_much_a_pool_is_overfull():
    table = tables.memory_table(gpu_forecast(feasible=False))
    assert table.rows[0] == (
        "p0", "91.0 GiB", "80.0 GiB", "114 %, over by 11.0 GiB", "actor.update",
    )  # fmt: skip


def test_the_memory_table_shows_measured_peaks_of_a_run():
    table = tables.memory_table(cpu_forecast(), cpu_run())
    assert [row[-1] for row in table.rows] == ["447 MiB", "431 MiB"]


def test_terms_of_memory_are_sorted_by_size():
    rows = tables.memory_terms_table(gpu_forecast()).rows
    assert rows[0] == ("p0", "actor optimizer states", "27.0 GiB", "38 %")


def test_runners_up_are_the_best_plan_of_every_placement():
    assert search_tables.runners_up_table(gpu_search()).rows == (
        ("1", "{actor, reference} {critic, reward}", "12 + 4", "2 min 24 s", "best", "", ""),
        (
            "2", "{actor, critic, reference, reward}", "16", "2 min 46 s", "+22.70 s", "+15.8 %",
            "training +17.50 s, preparation +9.30 s, generation \N{MINUS SIGN}4.10 s",
        ),
    )  # fmt: skip


def test_pools_in_another_order_are_the_same_placement():
    search = gpu_search()
    best = search.plans[0]
    turned = replace(best, plan=replace(best.plan, pools=best.plan.pools[::-1]))
    found = search_tables.best_of_placements(replace(search, plans=(best, turned)))
    assert found == (best,)


def test_the_search_says_how_far_the_best_plan_can_be_from_the_optimum():
    assert search_tables.search_words(gpu_search()) == (
        "Of 3 placements, 2 fit. The best takes 2 min 24 s; the best of another placement takes "
        "16 % longer. No plan of the space is faster than 2 min 19 s: the best plan is at most "
        "3.1 % from the optimum. The search took 3.10 s."
    )
    assert "proven to be the optimum" in search_tables.search_words(replace(gpu_search(), gap=0.0))


def by_cost():
    """Return a search by cost: its runner-up runs ahead, and is faster and dearer."""
    found = gpu_search()
    first, _, last = found.plans
    job = replace(first.plan.job, objective="cost")
    plans = (
        replace(first, plan=replace(first.plan, job=job)),
        replace(
            last,
            plan=replace(last.plan, job=job, mode="one-step-off", staleness=1.0),
            loses_seconds=-9.0,
        ),
    )
    return replace(found, plans=plans)


def test_a_search_by_cost_bounds_no_seconds():
    told = search_tables.search_words(by_cost())
    assert "Plans were searched by cost: the best plan is at most 3.1 % from the optimum." in told
    assert "faster than" not in told
    assert "longer" not in told


def test_a_mode_loses_by_what_was_searched_by():
    usd = ShownAs(heading="USD/M tokens")
    told = search_tables.mode_words(by_cost(), usd, [0.25, 0.5])
    assert told.startswith(
        "one-step-off loses by USD/M tokens: the best plan in mode one-step-off, "
    )
    assert told.endswith("has 0.500 where the best of all has 0.250")


def test_a_search_without_a_plan_says_so():
    empty = replace(gpu_search(), plans=())
    assert search_tables.search_words(empty) == "The search found no plan that fits."
    assert search_tables.runners_up_table(empty).rows == ()


def test_infeasible_placements_and_counts_are_listed():
    search = gpu_search()
    assert (
        search_tables.infeasible_table(search).rows[0][0] == "{actor} {critic} {reference} {reward}"
    )
    assert ("Dropped", "critical path above the best", "1,204") in (
        search_tables.search_counts_table(search).rows
    )


@pytest.mark.parametrize(
    ("layout", "kind", "words"),
    [
        (
            TaskPlan(pool="p", tp=2, dp=8, max_running=256, engine="vllm"), "generate",
            "8 replicas of 2 devices (TP 2), at most 256 sequences at a time each, up to 90 % of the memory, engine vllm",
        ),
        (
            TaskPlan(pool="p", tp=8, pp=2, dp=2, micro_batch=4, recompute="selective", zero=1,
                     offload=True), "train",
            "TP 8 \N{MULTIPLICATION SIGN} PP 2 \N{MULTIPLICATION SIGN} DP 2, micro-batches of 4, norms, activations and attention recomputed, ZeRO stage 1, optimizer states in host memory between uses",
        ),
        (
            TaskPlan(pool="p", dp=4, offload=True), "infer",
            "TP 1 \N{MULTIPLICATION SIGN} DP 4, micro-batches of 1, weights in host memory between uses",
        ),
        (TaskPlan(pool="p", dp=1), "rule", "1 worker process"),
    ],
)  # fmt: skip
def test_layouts_are_told_in_words(layout, kind, words):
    assert wording.layout_words(layout, kind) == words


def test_every_task_of_the_job_has_a_row_in_the_dataflows_order():
    rows = tables.layout_table(cpu_plan()).rows
    assert [row[0] for row in rows] == [
        "actor.generate", "critic.compute_values", "reference.compute_log_prob",
        "reward.compute_reward", "rule.compute_reward", "actor.update", "critic.update",
    ]  # fmt: skip
    assert rows[4] == ("rule.compute_reward", "rules", "rule", "1 worker process")


def test_clusters_models_and_work_are_told_in_words():
    job = gpu_plan().job
    assert (
        wording.cluster(job)
        == "2 nodes of 8 \N{MULTIPLICATION SIGN} a100-80gb-sxm, 200 Gbit/s between nodes"
    )
    assert wording.models(job) == "llama-2-7b (actor, critic, reference, reward)"
    assert wording.workload(job) == (
        "1,024 prompts; 1,024 prompt and 1,024 response tokens; 8 updates"
    )


def test_lengths_are_told_in_words():
    assert wording.lengths(Uniform(low=8, high=32)) == "8 to 32"
    assert wording.lengths(Lognormal(mean=300, std=200, max=4096)) == (
        "300 on average (at most 4,096)"
    )
    cut = Lognormal(mean=12131, std=8631, max=8192)
    assert wording.lengths(cut) == "7,168 on average (at most 8,192)"
    assert wording.lengths(Empirical(values=(5, 3, 9))) == "3 to 9 (as observed)"


def test_sources_name_profile_models_and_what_left_the_measured_range():
    rows = {row[0]: row[1] for row in tables.sources_table(gpu_plan(), gpu_forecast()).rows}
    assert rows["Model llama-2-7b"] == "Touvron et al. 2023, arXiv:2307.09288"
    assert rows["Forecast: datasheet, outside the measured range"] == "actor.generate"
    assert rows["Forecast: fitted"] == "reference.compute_log_prob"


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0, "0 %"), (0.0004, "<0.1 %"), (0.042, "4.2 %"), (0.42, "42 %"), (1.14, "114 %")],
)
def test_shares_are_told_with_two_digits(share, words):
    assert wording.percent(share) == words


def test_parts_and_stages_are_shares_of_their_whole():
    assert tables.stage_table(gpu_forecast()).rows[0] == ("Stage: generation", "60.80 s", "42 %")
    assert ("actor.generate", "decode", "50.46 s", "83 %") in tables.parts_table(
        gpu_forecast()
    ).rows


def test_a_task_that_takes_no_time_has_no_parts():
    forecast = gpu_forecast()
    task = replace(forecast.costs[0], seconds=0.0, parts=FrozenDict({"copy": 0.0}))
    assert tables.parts_table(replace(forecast, costs=(task,))).rows == ()
