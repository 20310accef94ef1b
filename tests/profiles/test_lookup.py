"""Look-ups: measured points come back exactly, what lies between is sane, what lies outside is flagged."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.estimate import Source
from rlplan.models import ModelArchitecture
from rlplan.probing import ModelPass
from rlplan.profiles.tables.measurements import (
    LinearInterpolation,
    PassTable,
    RatioInterpolation,
    piecewise,
)
from rlplan.profiles.tables.table import Point, key_of, model_pass_keys

SECONDS = st.floats(1e-6, 1e3, allow_nan=False)


def point(seconds: float, source: Any = "measured") -> Point:
    return Point(
        seconds_median=seconds,
        seconds_p10=seconds * 0.9,
        seconds_p90=seconds * 1.1,
        seconds_mean=seconds,
        repeats=5,
        source=source,
    )


def tiny(num_layers: int = 2) -> ModelArchitecture:
    return ModelArchitecture(
        name="tiny",
        family="llama",
        hidden_size=64,
        num_layers=num_layers,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        ffn_size=128,
        vocab_size=260,
    )


def a_pass(name="train", layers=2, sequences=1, tokens=1, tp=1) -> ModelPass:
    return ModelPass(
        name=name,
        model=tiny(layers),
        head="lm",
        precision="fp32",
        tp=tp,
        sequences=sequences,
        tokens=tokens,
    )


def passes(entries) -> PassTable:
    points = {key_of("model_pass", model_pass_keys(each)): point(s) for each, s in entries}
    return PassTable(points)


# ------------------------------------------------------------------------------------- lines


def test_a_line_reads_between_and_beyond_its_points_literally():
    line = LinearInterpolation({100: point(1.0), 200: point(2.0), 400: point(3.0)})
    assert line.at(200).seconds == 2.0
    assert line.at(200).source == Source.MEASURED
    assert line.at(300).seconds == pytest.approx(2.5)
    assert line.at(300).source == Source.INTERPOLATED
    assert not line.at(300).outside_range
    assert line.at(800).seconds == pytest.approx(5.0)
    assert line.at(800).outside_range
    assert line.at(50).seconds == pytest.approx(0.5)
    assert line.at(50).outside_range


def test_a_line_with_a_fixed_cost_keeps_it_below_its_first_point():
    line = LinearInterpolation({100: point(1.1), 200: point(1.2)})
    assert line.at(1).seconds == pytest.approx(1.001)


def test_noise_that_falls_with_the_work_is_not_continued():
    line = LinearInterpolation({100: point(2.0), 200: point(1.0)})
    assert line.at(10).seconds == 2.0
    assert line.at(1000).seconds == 1.0


def test_a_single_point_makes_nothing_unknown_cheap():
    line = LinearInterpolation({100: point(1.0)})
    assert line.at(50).seconds == 1.0
    assert line.at(300).seconds == pytest.approx(3.0)
    assert line.at(300).outside_range


def test_a_bend_in_the_points_widens_the_spread_between_them():
    bent = LinearInterpolation({100: point(1.0), 200: point(4.0), 300: point(5.0)})
    assert bent.at(250).spread_seconds == pytest.approx(4.5 * 0.25)


LINES = st.dictionaries(st.integers(0, 10**12), SECONDS, min_size=1, max_size=8)


@given(LINES)
def test_a_line_gives_every_measured_point_exactly(points):
    line = LinearInterpolation({x: point(seconds) for x, seconds in points.items()})
    for x, seconds in points.items():
        estimate = line.at(x)
        assert estimate.seconds == seconds
        assert estimate.source == Source.MEASURED
        assert not estimate.outside_range


@given(LINES, st.lists(st.integers(0, 10**13), min_size=2, max_size=6))
def test_a_line_over_monotone_points_is_monotone_everywhere(points, queries):
    points = dict(zip(sorted(points), sorted(points.values()), strict=True))
    line = LinearInterpolation({x: point(seconds) for x, seconds in points.items()})
    answers = [line.at(x).seconds for x in sorted(queries)]
    for earlier, later in itertools.pairwise(answers):
        assert later >= earlier * (1 - 1e-12)


@given(LINES, st.integers(0, 10**13))
def test_a_line_flags_what_lies_outside_and_nothing_else(points, x):
    line = LinearInterpolation({each: point(seconds) for each, seconds in points.items()})
    estimate = line.at(x)
    assert estimate.outside_range == (not min(points) <= x <= max(points))
    assert estimate.seconds >= 0


def test_piecewise_takes_the_segment_that_holds_x():
    assert piecewise([0, 1, 3], [0.0, 1.0, 2.0], 2) == 1.5
    assert piecewise([0, 1, 3], [0.0, 1.0, 2.0], 0) == 0.0


# ----------------------------------------------------------------------------------- scatters


def work(shape) -> float:
    return 1e-9 * (shape[0] + 1) * (shape[1] + 1) * (shape[2] + 1)


SHAPES = st.tuples(*[st.integers(0, 5000)] * 3)
SCATTERS = st.dictionaries(SHAPES, SECONDS, min_size=1, max_size=12)


@given(SCATTERS)
def test_a_scatter_gives_every_measured_point_exactly(points):
    scatter = RatioInterpolation({shape: point(s) for shape, s in points.items()}, work)
    for shape, seconds in points.items():
        assert scatter.at(shape).seconds == seconds
        assert scatter.at(shape).source == Source.MEASURED


@given(SCATTERS, SHAPES)
def test_a_scatter_stays_between_its_ratios_and_flags_what_lies_outside(points, shape):
    scatter = RatioInterpolation({each: point(s) for each, s in points.items()}, work)
    ratios = [seconds / work(each) for each, seconds in points.items()]
    estimate = scatter.at(shape)
    ratio = estimate.seconds / work(shape)
    assert min(ratios) * (1 - 1e-9) <= ratio <= max(ratios) * (1 + 1e-9)
    inside = all(
        min(each[axis] for each in points) <= shape[axis] <= max(each[axis] for each in points)
        for axis in range(3)
    )
    assert estimate.outside_range == (not inside)


@given(st.lists(SHAPES, min_size=1, max_size=10, unique=True), SHAPES, st.floats(0.1, 10))
def test_a_device_that_is_a_constant_factor_off_its_model_is_foretold_everywhere(
    shapes, asked, factor
):
    scatter = RatioInterpolation({shape: point(factor * work(shape)) for shape in shapes}, work)
    assert scatter.at(asked).seconds == pytest.approx(factor * work(asked))


def test_between_two_points_that_differ_in_one_number_only_they_decide():
    scatter = RatioInterpolation(
        {
            (1, 8, 8): point(2 * work((1, 8, 8))),
            (7, 8, 8): point(4 * work((7, 8, 8))),
            (3, 8, 9): point(100 * work((3, 8, 9))),
        },
        work,
    )
    # log1p(3) lies halfway between log1p(1) and log1p(7).
    assert scatter.at((3, 8, 8)).seconds == pytest.approx(3 * work((3, 8, 8)))


# ------------------------------------------------------------------------------- model passes


def affine(sequences: int, tokens: int) -> float:
    return 0.01 + 0.001 * sequences * tokens + 1e-6 * sequences * tokens**2


GRID = [(s, t) for s in (1, 4, 16) for t in (32, 128)]


def test_a_pass_inside_a_cell_is_bilinear():
    table = passes(
        (a_pass(sequences=s, tokens=t), 10.0 * s + t)
        for s, t in ((1, 10), (1, 20), (3, 10), (3, 20))
    )
    estimate = table.at(a_pass(sequences=2, tokens=15))
    assert estimate.seconds == pytest.approx(35.0)
    assert estimate.source == Source.INTERPOLATED
    assert not estimate.outside_range


def test_a_pass_outside_the_grid_follows_its_parts_and_is_flagged():
    table = passes((a_pass(sequences=s, tokens=t), affine(s, t)) for s, t in GRID)
    estimate = table.at(a_pass(sequences=32, tokens=512))
    assert estimate.seconds == pytest.approx(affine(32, 512), rel=1e-3)
    assert estimate.outside_range


def test_a_cross_of_points_without_corners_is_read_by_the_fit():
    cross = [(8, 32), (8, 64), (8, 128), (4, 64), (16, 64)]
    table = passes((a_pass(sequences=s, tokens=t), affine(s, t)) for s, t in cross)
    estimate = table.at(a_pass(sequences=12, tokens=96))
    assert estimate.seconds == pytest.approx(affine(12, 96), rel=0.02)
    assert not estimate.outside_range


def test_a_single_length_is_enough_to_read_between_batches():
    table = passes((a_pass(sequences=s, tokens=64), 1.0 + s) for s in (2, 8))
    assert table.at(a_pass(sequences=4, tokens=64)).seconds == pytest.approx(5.0)
    assert table.at(a_pass(sequences=4, tokens=80)).outside_range


@given(st.integers(1, 600))
def test_of_points_of_one_length_a_fixed_part_and_the_tokens_are_told_apart(tokens):
    """Parts that grow otherwise with the length would fit such points as well, and be far off at other lengths."""
    measured = {each: 4e-3 + 1.6e-5 * each * 144 for each in (1, 4, 16, 32)}
    found = passes((a_pass(sequences=each, tokens=144), at) for each, at in measured.items())
    expected = 4e-3 + 1.6e-5 * 16 * tokens
    assert found.at(a_pass(sequences=16, tokens=tokens)).seconds == pytest.approx(expected)


def test_layers_between_and_beyond_measured_ones_are_read_on_a_line():
    entries = [(a_pass(layers=2, sequences=4, tokens=64), 1.0)]
    entries.append((a_pass(layers=6, sequences=4, tokens=64), 2.0))
    table = passes(entries)
    assert table.at(a_pass(layers=4, sequences=4, tokens=64)).seconds == pytest.approx(1.5)
    beyond = table.at(a_pass(layers=10, sequences=4, tokens=64))
    assert beyond.seconds == pytest.approx(3.0)
    assert beyond.outside_range


def test_one_measured_number_of_layers_is_taken_in_proportion_and_flagged():
    table = passes([(a_pass(layers=2, sequences=4, tokens=64), 1.0)])
    estimate = table.at(a_pass(layers=8, sequences=4, tokens=64))
    assert estimate.seconds == pytest.approx(4.0)
    assert estimate.outside_range


def test_an_optimizer_step_knows_no_batch():
    table = passes([(a_pass("optimizer"), 0.5)])
    estimate = table.at(a_pass("optimizer", sequences=16, tokens=64))
    assert (estimate.seconds, estimate.source) == (0.5, Source.MEASURED)


def test_what_was_never_measured_is_none():
    table = passes([(a_pass(), 1.0)])
    assert table.at(a_pass("infer")) is None
    assert table.at(a_pass(tp=2)) is None


BATCHES = st.tuples(st.integers(1, 64), st.integers(1, 2048))


@given(
    st.sampled_from(["infer", "train", "decode", "prefill", "call"]),
    st.dictionaries(BATCHES, SECONDS, min_size=1, max_size=8),
    BATCHES,
)
def test_passes_give_measured_points_exactly_and_always_name_a_source(name, points, asked):
    table = passes((a_pass(name, sequences=s, tokens=t), y) for (s, t), y in points.items())
    for (sequences, tokens), seconds in points.items():
        assert table.at(a_pass(name, sequences=sequences, tokens=tokens)).seconds == seconds
    estimate = table.at(a_pass(name, sequences=asked[0], tokens=asked[1]))
    assert estimate.seconds > 0
    assert (estimate.source == Source.MEASURED) == (asked in points)
    inside = all(
        min(each[axis] for each in points) <= asked[axis] <= max(each[axis] for each in points)
        for axis in range(2)
    )
    assert estimate.outside_range == (not inside)


@given(BATCHES, st.integers(0, 64), st.integers(0, 2048))
def test_more_work_is_never_faster_for_passes_that_follow_their_parts(batch, more, longer):
    table = passes((a_pass(sequences=s, tokens=t), affine(s, t)) for s, t in GRID)
    small = table.at(a_pass(sequences=batch[0], tokens=batch[1]))
    large = table.at(a_pass(sequences=batch[0] + more, tokens=batch[1] + longer))
    # The fit and the straight lines of a cell differ by the curve inside a cell.
    assert large.seconds >= small.seconds * 0.95
