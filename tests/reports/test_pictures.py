"""The single pictures: scales, colours, labels that fit, and what is drawn where."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.files.frozen import FrozenDict
from rlplan.job import NodeGroup
from rlplan.plan import ResourcePool
from rlplan.reports.panels.memory import memory_figure
from rlplan.reports.panels.parts import parts_figure
from rlplan.reports.panels.plan import DrawnNode, drawn_nodes, plan_figure
from rlplan.reports.panels.timelines import (
    forecast_panel,
    lanes,
    measured_panel,
    median_iteration,
    timelines_figure,
)
from rlplan.reports.pictures.curves import curves_by_topic, curves_figure, topic_of
from rlplan.reports.pictures.picture import (
    POOL_COLOURS,
    SERIES_COLOURS,
    TASK_COLOURS,
    FillStyle,
    LegendEntry,
    elided,
    legend_rows,
    looks,
    readable_on,
    relative_luminance,
    text_width,
)
from rlplan.reports.pictures.stacked_bars import Bar, piece_looks
from rlplan.trace import Span
from tests.reports.run_samples import cpu_forecast, cpu_metrics, cpu_plan, cpu_run
from tests.reports.samples import gpu_forecast, gpu_plan


def axes_of(figure, label):
    return next(axes for axes in figure.axes if axes.get_label() == label)


def test_forecast_and_measured_timelines_have_the_same_scale():
    figure = timelines_figure(cpu_plan(), cpu_forecast(), cpu_run())
    forecast, measured = axes_of(figure, "forecast"), axes_of(figure, "measured")
    assert forecast.get_xlim() == measured.get_xlim()
    assert list(forecast.get_xticks()) == list(measured.get_xticks())
    above, below = forecast.get_position(), measured.get_position()
    assert (above.x0, above.x1) == pytest.approx((below.x0, below.x1))
    assert above.y0 > below.y1


def test_both_timelines_end_inside_the_picture_even_when_the_run_was_slower():
    run = cpu_run()
    slow = replace(
        run,
        trace=replace(
            run.trace,
            iterations=tuple(
                replace(each, end_seconds=each.end_seconds + 4.0) for each in run.trace.iterations
            ),
        ),
    )
    figure = timelines_figure(cpu_plan(), cpu_forecast(), slow)
    assert axes_of(figure, "forecast").get_xlim()[1] > 4.8


def test_a_forecast_alone_has_one_timeline():
    figure = timelines_figure(gpu_plan(), gpu_forecast())
    assert [axes.get_label() for axes in figure.axes] == ["canvas", "forecast"]


def test_the_measured_iteration_is_the_median_one_after_the_warm_up():
    run = cpu_run()
    lengths = (9.0, 9.0, 1.0, 3.0, 2.0, 5.0)
    ends = [sum(lengths[: number + 1]) for number in range(6)]
    iterations = tuple(
        replace(each, start_seconds=end - length, end_seconds=end)
        for each, end, length in zip(run.trace.iterations, ends, lengths, strict=False)
    )
    short = replace(run, trace=replace(run.trace, iterations=iterations))
    assert median_iteration(short).iteration == 4


def test_a_run_of_warm_up_only_has_no_measured_timeline():
    assert measured_panel(replace(cpu_run(), warmup_iterations=12)) is None


def test_spans_start_with_their_iteration():
    panel = measured_panel(cpu_run())
    assert min(span.start_seconds for span in panel.spans) == pytest.approx(0.0)
    assert forecast_panel(cpu_forecast()).seconds == 0.884


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 20)).map(
            lambda pair: Span(
                name="task", pool="p", iteration=0, start_seconds=float(pair[0]),
                end_seconds=float(pair[0] + pair[1]),
            )
        )
    )
)  # fmt: skip
def test_no_two_spans_of_a_lane_overlap_and_none_is_lost(spans):
    found = lanes(spans)
    assert sorted(span.start_seconds for lane in found for span in lane) == sorted(
        span.start_seconds for span in spans
    )
    for lane in found:
        assert all(
            first.end_seconds <= second.start_seconds for first, second in itertools.pairwise(lane)
        )


def test_labels_stand_inside_bars_only_where_they_fit():
    figure = timelines_figure(gpu_plan(), gpu_forecast())
    axes = axes_of(figure, "forecast")
    labels = [text.get_text() for text in axes.texts]
    assert sorted(labels) == [
        "actor.generate", "actor.update", "compute_reward", "compute_values", "critic.update",
    ]  # fmt: skip
    points_per_second = axes.get_window_extent().width / axes.get_xlim()[1]
    spans = {span.name: span for span in gpu_forecast().trace.spans}
    assert text_width("actor.generate", 8) < spans["actor.generate"].seconds * points_per_second


def test_pools_take_gpus_in_order_node_by_node():
    assert drawn_nodes(gpu_plan()) == (
        DrawnNode(first=0, count=1, gpu="a100-80gb-sxm", pools=("p0",) * 8),
        DrawnNode(first=1, count=1, gpu="a100-80gb-sxm", pools=("p0",) * 4 + ("p1",) * 4),
    )


def test_pools_take_gpus_of_their_own_device_and_the_rest_stays_unused():
    plan = gpu_plan()
    job = replace(
        plan.job,
        cluster=(
            NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=2, inter_node_gbps=200.0),
            NodeGroup(gpu="l40s", gpus_per_node=3, inter_node_gbps=200.0),
        ),
    )
    pools = (
        ResourcePool(name="cheap", device="l40s", gpus=2, roles=("reward",)),
        ResourcePool(name="fast", device="a100-80gb-sxm", gpus=2, roles=("actor",)),
        ResourcePool(name="rules", device="host", gpus=4, roles=("rule",)),
    )
    nodes = drawn_nodes(replace(plan, job=job, pools=pools))
    assert [node.pools for node in nodes] == [("fast", "fast"), ("cheap", "cheap", None)]
    texts = [
        text.get_text() for text in plan_figure(replace(plan, job=job, pools=pools)).axes[0].texts
    ]
    assert "not used" in texts


def test_nodes_that_look_alike_are_folded_only_in_large_clusters():
    plan = gpu_plan()
    job = replace(plan.job, cluster=(replace(plan.job.cluster[0], nodes=40),))
    nodes = drawn_nodes(replace(plan, job=job))
    assert [(node.first, node.count) for node in nodes] == [(0, 1), (1, 1), (2, 38)]
    assert nodes[2].title == "nodes 2 to 39 (38 alike) · a100-80gb-sxm"


def test_memory_shows_the_capacity_when_it_is_near():
    axes = axes_of(memory_figure(gpu_forecast()), "bars")
    assert axes.get_xlim()[1] == pytest.approx(80 * 1024**3 * 1.03)
    assert len(axes.lines) == 2
    assert axes.get_xlabel() == "GiB"


def test_memory_says_when_the_capacity_lies_outside():
    figure = memory_figure(cpu_forecast(), cpu_run())
    axes = axes_of(figure, "bars")
    assert not axes.lines
    assert axes.get_xlabel() == "MiB (the capacity lies farther to the right)"
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert "430 MiB of 8.0 GiB (5.2 %)\nmeasured 447 MiB" in words


def test_an_overfull_pool_reaches_over_its_capacity():
    axes = axes_of(memory_figure(gpu_forecast(feasible=False)), "bars")
    assert axes.get_xlim()[1] > 91 * 1024**3


def test_small_pieces_share_one_colour():
    pieces = {f"term {number:02}": float(20 - number) for number in range(14)}
    found = piece_looks([Bar(name="p", pieces=pieces, remark="")])
    assert list(found)[-1] == "other"
    assert len(found) == len(TASK_COLOURS) + 1
    assert len({look.colour for look in found.values()}) == len(found)


def test_parts_of_every_task_add_up_to_its_bar():
    axes = axes_of(parts_figure(gpu_forecast()), "bars")
    for number, task in enumerate(gpu_forecast().costs):
        pieces = [
            patch for patch in axes.patches
            if patch.get_zorder() == 2 and 34 * number <= patch.get_y() < 34 * (number + 1)
        ]  # fmt: skip
        assert sum(patch.get_width() for patch in pieces) == pytest.approx(task.seconds)


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("reward/mean", "Reward"),
        ("scores", "Reward"),
        ("rule_reward", "Rule reward"),
        ("actor/approx_kl", "KL divergence"),
        ("reference_kl", "KL divergence"),
        ("kl_coefficient", None),
        ("critic/value_loss", "Losses"),
        ("timing_s/reward.compute_reward", None),
        ("value_clip_fraction", None),
        ("reward/std", None),
        ("tokens", None),
    ],
)
def test_metrics_find_their_panel_by_name(name, topic):
    assert topic_of(name) == topic


def test_curves_are_drawn_by_topic_in_reading_order():
    assert {topic: list(series) for topic, series in curves_by_topic(cpu_metrics()).items()} == {
        "Reward": ["reward/mean"],
        "Rule reward": ["reward/rule_mean"],
        "KL divergence": ["actor/reference_kl", "actor/approx_kl"],
        "Losses": ["actor/policy_loss", "critic/value_loss"],
    }
    figure = curves_figure(cpu_metrics())
    assert len(axes_of(figure, "Reward").lines[0].get_xdata()) == 12


def test_metrics_without_a_curve_draw_nothing():
    assert curves_figure([{"iteration": 0, "tokens": 3.0}]) is None
    assert curves_figure([{"iteration": 0, "loss": float("nan")}]) is None


def test_text_that_does_not_fit_is_cut():
    assert elided("actor", 100.0) == "actor"
    cut = elided("a-very-long-name-of-a-pool" * 4, 100.0)
    assert cut.endswith("…")
    assert text_width(cut) <= 100.0


def test_legends_break_into_rows_and_keep_every_entry():
    entries = [LegendEntry(f"task number {number}", FillStyle("#000000")) for number in range(20)]
    rows = legend_rows(entries, 300.0)
    assert [entry for row in rows for entry in row] == entries
    assert len(rows) > 5


def test_looks_tell_things_apart_when_colours_repeat():
    found = looks([str(number) for number in range(30)], POOL_COLOURS)
    assert len({(look.colour, look.hatch) for look in found.values()}) >= 28


@pytest.mark.parametrize("colour", [*TASK_COLOURS, *POOL_COLOURS, *SERIES_COLOURS])
def test_text_on_every_colour_has_a_contrast_of_at_least_four_and_a_half(colour):
    light, dark = sorted(
        (relative_luminance(colour), relative_luminance(readable_on(colour))), reverse=True
    )
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_an_empty_memory_term_draws_no_bar():
    forecast = gpu_forecast()
    memory = replace(forecast.memory[0], terms=FrozenDict({"weights": 5, "KV cache": 0}))
    axes = axes_of(memory_figure(replace(forecast, memory=(memory,))), "bars")
    assert [patch.get_width() for patch in axes.patches if patch.get_zorder() == 2] == [5.0]


def test_while_iterations_overlap_the_neighbours_work_is_drawn_and_not_counted():
    run = cpu_run()
    ahead = [
        replace(
            span,
            iteration=span.iteration + 1,
            start_seconds=span.start_seconds + 0.1,
            end_seconds=span.end_seconds + 0.1,
        )
        for span in run.trace.spans
        if span.name == "actor.generate"
    ]
    panel = measured_panel(replace(run, trace=replace(run.trace, spans=(*run.trace.spans, *ahead))))
    own = [span for span in panel.drawn if span.iteration == panel.spans[0].iteration]
    beside = [span for span in panel.drawn if span.iteration != panel.spans[0].iteration]
    assert {span.name for span in beside} == {"actor.generate"}
    assert len(own) == len(measured_panel(run).drawn)
    assert max(span.end_seconds for span in beside) <= panel.seconds
