"""What pages draw themselves, as the shares of their width that stand in the page."""

import base64
import hashlib
import re
from dataclasses import replace

import pytest

from rlplan.reports.pages.report import content_of, html, themed
from rlplan.reports.panels import Subject
from rlplan.reports.panels.responses import ended_seconds, under_way_curve
from rlplan.reports.panels.search import TOP_PLACEMENTS
from rlplan.reports.panels.timelines import timeline_of, timeline_table
from rlplan.reports.panels.whatif import what_if_table
from rlplan.reports.tables.plans import Table, columns, split
from rlplan.reports.widgets import even_ticks, memory_bars, ranges_of_run, share
from rlplan.results.measurement import Comparison, ComparisonRow
from tests.reports.samples import gpu_details, gpu_forecast, gpu_plan


def test_shares_and_ticks_are_round():
    assert share(1.0, 3.0) == "33.3333%"
    assert share(1.0, 2.0) == "50%"
    assert even_ticks(45.0, 1.0, 6) == pytest.approx([0, 10, 20, 30, 40])
    assert even_ticks(143.7, 60.0, 6) == pytest.approx([0, 30, 60, 90, 120])


def test_a_timeline_has_a_bar_for_every_span_where_it_lies():
    timeline = timeline_of(gpu_plan(), gpu_forecast())
    (chart,) = timeline.charts
    bars = {bar.label: bar for track in chart.tracks for bar in track.bars}
    assert chart.end == "100%"
    # A hundredth of its 50.7 s is the call that brings its inputs: the bar begins behind that.
    assert bars["critic.update"].left == share(93.507, 143.7)
    assert bars["critic.update"].width == share(50.193, 143.7)
    assert bars["critic.update"].words == "critic.update on p1: 50.19 s, from 93.51 s to 2 min 24 s"
    assert len(timeline_table(timeline).rows) == len(bars) == 8


def test_memory_stands_by_term_against_capacity_and_its_usual_free_share():
    bars = memory_bars(gpu_details().memory, {"p0": 40 * 2**30})
    first = bars.pools[0]
    assert (first.capacity, first.usual) == (share(80, 80 * 1.04), share(72, 80 * 1.04))
    assert first.measured == share(40, 80 * 1.04)
    assert sum(float(piece.width[:-1]) for piece in first.rows[0].pieces) == pytest.approx(
        100 * 72 / (80 * 1.04), abs=0.01
    )
    assert first.rows[0].remark == "72.0 GiB of 80.0 GiB (90 %)"


def test_a_curve_steps_down_at_every_end_and_marks_how_many_run():
    found = gpu_details().under_way
    curve = under_way_curve(found)
    assert curve.path == "M0 0.00H166.67V130.00H333.33V227.50H1000.00V260.00"
    assert (curve.limit, curve.limit_words) == ("50%", "at most 4 run at a time")
    assert [ended_seconds(found, part) for part in (0.5, 0.8, 1.0)] == [10.0, 20.0, 60.0]


def test_other_jobs_stand_below_the_plan_as_it_is():
    subject = Subject(plan=gpu_plan(), forecast=gpu_forecast(), details=gpu_details())
    rows = what_if_table(subject).rows
    assert [row[0] for row in rows] == ["as it is", "half the batch", "2 more nodes"]
    assert rows[1][2:6] == ("80.00 s", "16", "912", "0.7000 USD")
    assert rows[2][1] == "no plan"
    assert rows[2][-1] == "no placement fits"


def test_a_measured_task_stands_beside_the_forecast_at_its_lengths():
    row = ComparisonRow(
        name="actor.update", pool="p0", forecast_seconds=20.0, measured_median_seconds=10.0,
        measured_interval_seconds=(8.0, 12.0), error_fraction=1.0, source="measured", as_run_seconds=10.5,
    )  # fmt: skip
    whole = replace(row, name="iteration")
    found = ranges_of_run(
        Comparison(rows=(row,), iteration=whole, warmup_iterations=1, compared_iterations=3)
    )
    assert found.rows[0].forecast == share(10.5, 12.0 * 1.04)
    assert found.rows[0].words == (
        "measured 10.00 s, forecast 10.50 s (measured p10 to p90 8.00 s to 12.00 s)"
    )


def test_rows_beyond_the_first_are_folded():
    table = Table(
        columns=columns("##"),
        rows=tuple((str(n),) for n in range(7)),
        strong_rows=frozenset({0, 6}),
    )
    best, others = split(table, TOP_PLACEMENTS)
    assert (len(best.rows), others.rows) == (5, (("5",), ("6",)))
    assert (best.strong_rows, others.strong_rows) == ({0}, {1})


def test_only_the_pages_own_script_may_run():
    page = html(content_of(Subject(plan=gpu_plan(), forecast=gpu_forecast())))
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page


def test_pictures_follow_the_page_but_for_white_texts_on_bars():
    svg = '<path style="fill: #ffffff; stroke: #1f2430"/><text style="font: 9px x; fill: #ffffff">'
    assert themed(svg) == (
        '<path style="fill: var(--card); stroke: var(--ink)"/>'
        '<text style="font: 9px x; fill: #ffffff">'
    )
