"""Factors of a site: recovered up to the shrinkage, tied where rows cannot tell them apart, robust."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.calibration import Calibration, Factor, WorkKind
from rlplan.errors import UserError
from rlplan.estimate import Estimate
from rlplan.files.frozen import FrozenDict
from rlplan.profiles.analytic.efficiencies import load_spreads
from rlplan.results.accuracy import Row, StageSeconds
from rlplan.simulator.calibration import calibrate
from rlplan.simulator.observations import observations_of

FORECAST = {"generation": 46.0, "old_log_prob": 7.0, "update_actor": 24.0, "weight_sync": 2.0}
STAGES = tuple(FORECAST)
KIND: dict[str, WorkKind] = {
    "generation": "generation",
    "old_log_prob": "inference",
    "update_actor": "training",
    "weight_sync": "transition",
}


def row(measured, *, step=None, forecast=FORECAST, beyond=0.0, engine=""):
    """Return a row whose stages took `measured`, by their names; `step` is the whole step."""
    stages = {
        name: StageSeconds(
            measured_seconds=measured.get(name), forecast_seconds=seconds, engine=engine
        )
        for name, seconds in forecast.items()
    }
    return Row(
        label="a step",
        measured_seconds=step,
        forecast=Estimate(sum(forecast.values()) + beyond),
        stages=FrozenDict(stages),
    )


def factors(*rows, **more):
    observations = [each for one in rows for each in observations_of(one)]
    return calibrate(observations, **more).calibration


@given(st.sampled_from(STAGES), st.floats(0.2, 5.0), st.integers(1, 6))
def test_exact_multiples_are_recovered_up_to_the_shrinkage(stage, factor, rows):
    measured = row({stage: FORECAST[stage] * factor})
    found = factors(*[measured] * rows).stages[KIND[stage]]
    spreads = load_spreads()
    prior = spreads.between_sites[KIND[stage]].value ** 2
    of_step = spreads.of_step.value * sum(FORECAST.values()) / FORECAST[stage]
    error = math.hypot(spreads.within_site.value, of_step)
    shrinkage = 1 / (1 + rows * prior / error**2)
    assert found.rows == rows
    # Twice the log-likelihood that the factor brings; rows beyond what is usual count less.
    size = abs(math.log(factor)) / error
    gained = rows * size**2 * (1 - shrinkage)
    if gained < 1.9:
        assert (found.value, found.shrinkage) == (1.0, 1.0)
        return
    drawn = (1 - shrinkage) * abs(math.log(factor))
    # Neither the row is an outlier of its own factor, nor the factor one among sites.
    usual = abs(math.log(factor)) * shrinkage < error and drawn < math.sqrt(prior)
    if usual and gained > 2.1:
        kept = (1 - 2 / gained) * (1 - shrinkage)
        assert found.shrinkage == pytest.approx(1 - kept)
        assert math.log(found.value) == pytest.approx(kept * math.log(factor), abs=1e-9)


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_stages_that_were_published_have_factors_of_their_own(generation, training):
    one = row(
        {
            "generation": FORECAST["generation"] * generation,
            "update_actor": FORECAST["update_actor"] * training,
        }
    )
    found = factors(one)
    assert set(found.stages) == {"generation", "training"}
    for kind, factor in {"generation": generation, "training": training}.items():
        assert not found.stages[kind].tied_to
        if abs(math.log(factor)) < 0.1:
            assert found.stages[kind].value == 1.0
        elif abs(math.log(factor)) > 0.3:
            assert (found.stages[kind].value > 1) == (factor > 1)


@given(st.floats(0.86, 1.16))
def test_a_step_as_it_may_be_at_any_site_changes_no_forecast(times):
    seconds = sum(FORECAST.values())
    found = calibrate(observations_of(row({}, step=seconds * times)))
    assert all(factor.value == 1.0 for _, factor in found.calibration.named())
    assert any("not worth a factor" in note for note in found.notes)


times = st.floats(0.5, 2.0)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=5), st.floats(-0.05, 0.05))
def test_no_factor_jumps_where_a_measured_time_hardly_changes(steps, more):
    """Beyond the price of a parameter a factor grows at most twice as fast as the time that it explains."""

    def found(first):
        rows = [(first, steps[0][1]), *steps[1:]]
        rows = [
            row({"generation": 46.0 * generation, "update_actor": 24.0 * training})
            for generation, training in rows
        ]
        return factors(*rows).stages

    before, after = found(steps[0][0]), found(steps[0][0] * (1 + more))
    for kind in before:
        moved = math.log(after[kind].value / before[kind].value)
        assert abs(moved) <= 2.0 * abs(math.log1p(more)) + 1e-9


def test_a_small_factor_that_many_steps_show_is_applied():
    once, often = (
        factors(row({}, step=1.15 * sum(FORECAST.values()))),
        factors(*[row({}, step=1.15 * sum(FORECAST.values()))] * 4),
    )
    assert once.stages["training"].value == 1.0
    assert 1.05 < often.stages["training"].value < 1.15


def test_where_forecasts_are_off_by_less_one_row_says_more():
    """Updates that take 1.15 times their forecast: 1.2 spreads at frameworks' sites, not worth a factor; 2.2 on a machine that is known better."""
    (seen,) = observations_of(row({"update_actor": 115.0}, forecast={"update_actor": 100.0}))
    usual, sure = (
        calibrate([replace(seen, spread=spread)], within=within).calibration.stages["training"]
        for spread, within in ((seen.spread, None), (0.063, 0.063))
    )
    assert (usual.value, usual.spread > seen.spread) == (1.0, True)
    assert 1.05 < sure.value < 1.15
    assert 0.063 < sure.spread < seen.spread
    within_site = load_spreads().within_site.value
    assert calibrate([seen], within=within_site) == calibrate([seen])


def test_a_step_alone_gives_all_its_stages_one_factor():
    fitted = calibrate(observations_of(row({}, step=1.4 * sum(FORECAST.values()))))
    found = fitted.calibration.stages
    assert set(found) == {"generation", "inference", "training", "transition"}
    (value,) = {factor.value for factor in found.values()}
    # Stages off by themselves make up for each other: their sum is surer to be as forecast than each is.
    each = factors(row({"generation": 1.4 * FORECAST["generation"]})).stages["generation"].value
    assert 1.1 < value < each < 1.4
    assert "not told apart" in fitted.notes[0]


def test_what_is_left_of_a_step_is_one_factor_of_the_stages_that_were_not_published():
    found = factors(row({"generation": 46.0}, step=46.0 + 2 * 33.0)).stages
    assert found["generation"].value == pytest.approx(1.0)
    assert set(found["training"].tied_to) == {"inference", "transition"}
    assert found["training"].value > 1.5


def test_steps_of_unlike_shares_tell_stages_apart():
    long = {"generation": 90.0, "update_actor": 4.0}
    short = {"generation": 4.0, "update_actor": 90.0}
    found = factors(
        row({}, step=2 * 90.0 + 4.0, forecast=long), row({}, step=2 * 4.0 + 90.0, forecast=short)
    ).stages
    assert not any(factor.tied_to for factor in found.values())
    assert found["generation"].value > 1.6
    assert found["training"].value < 1.1


def test_a_site_unlike_all_others_is_drawn_to_1_by_no_more_than_one_that_differs_usually():
    left = [
        math.log(factor / factors(row({"generation": factor * 46.0})).stages["generation"].value)
        for factor in (1.2, 1.4, 1.6, 1.8, 2.2)
    ]
    assert left[0] == pytest.approx(math.log(1.2))  # not worth its price
    assert all(more > less for more, less in pairwise(left))


def test_one_odd_row_does_not_move_a_site():
    usual = [row({"generation": 1.2 * 46.0})] * 6
    odd = row({"generation": 20 * 46.0})
    found = factors(*usual, odd).stages["generation"].value
    assert factors(*usual).stages["generation"].value < found < 1.35


def test_engines_have_factors_of_their_own_where_a_site_ran_several():
    one = row({"generation": 46.0}, engine="vllm-0.8")
    other = row({"generation": 92.0}, engine="sglang")
    assert not factors(one).engines
    found = factors(one, other)
    assert found.engines["vllm-0.8"].value == pytest.approx(1.0)
    assert found.engines["sglang"].value > 1.6
    assert found.factor("generation", "sglang") == found.engines["sglang"]
    assert found.factor("generation", "another") == found.stages["generation"]


def test_what_was_asked_for_and_cannot_be_told_apart_is_refused_with_what_to_measure():
    step = observations_of(row({}, step=100.0))
    with pytest.raises(UserError, match=r"training cannot be told apart from generation.*stage"):
        calibrate(step, wanted=["training"])
    with pytest.raises(UserError, match="training was not measured"):
        calibrate(observations_of(row({"generation": 50.0})), wanted=["training"])
    with pytest.raises(UserError, match="nothing to calibrate on"):
        calibrate([])


def test_stages_that_overlap_are_not_taken_for_parts_of_the_step():
    hidden = row({"generation": 60.0}, step=50.0, beyond=-30.0)
    assert [each.label for each in observations_of(hidden)] == ["a step, generation"]
    alone = row({}, step=98.0, beyond=-30.0)
    (step,) = observations_of(alone)
    assert sum(part.seconds for part in step.parts) == pytest.approx(49.0)


def test_what_a_timer_holds_of_another_stage_has_that_stages_factor():
    stage = StageSeconds(
        measured_seconds=100.0,
        forecast_seconds=50.0,
        inner_seconds=FrozenDict({"weight_sync": 20.0}),
        link_seconds=FrozenDict({"intra-node": 10.0}),
    )
    one = Row(label="a step", stages=FrozenDict({"generation": stage}))
    (found,) = observations_of(one)
    assert sorted((part.kind or "", part.link or "", part.seconds) for part in found.parts) == [
        ("generation", "", 20.0), ("generation", "intra-node", 10.0), ("transition", "", 20.0),
    ]  # fmt: skip


def test_links_are_told_apart_by_stages_of_unlike_shares_on_them():
    def on_links(seconds, factor):
        stage = StageSeconds(
            measured_seconds=100.0 - seconds + factor * seconds,
            forecast_seconds=100.0,
            link_seconds=FrozenDict({"inter-node": seconds}),
        )
        return Row(
            label="a step", forecast=Estimate(100.0), stages=FrozenDict({"update_actor": stage})
        )

    near, far = [on_links(5.0, 2.0)] * 8, [on_links(80.0, 2.0)] * 8
    found = factors(*near, *far)
    assert found.links["inter-node"].value > 1.6
    assert found.stages["training"].value == pytest.approx(1.0, abs=0.1)
    assert not factors(*near).links


def test_a_step_whose_stages_overlap_is_made_of_its_critical_path():
    path = FrozenDict({"generation": 60.0, "log_probs": 0.0, "training": 0.0, "weight_sync": 5.0})
    hidden = replace(row({}, step=125.0, beyond=65.0 - 79.0), path_seconds=path)
    (step,) = observations_of(hidden)
    assert {part.kind: part.seconds for part in step.parts} == {"generation": 60, "transition": 5}
    assert factors(hidden).stages["generation"].value > 1.5


def test_more_rows_are_drawn_to_1_less_and_known_better():
    once, often = (factors(*[row({"generation": 60.0})] * rows) for rows in (1, 8))
    assert often.stages["generation"].shrinkage < once.stages["generation"].shrinkage
    assert often.stages["generation"].spread < once.stages["generation"].spread
    assert often.stages["generation"].spread >= load_spreads().within_site.value


def test_a_factor_is_named_as_it_is_asked_for():
    found = Calibration(
        stages=FrozenDict({"generation": Factor()}),
        engines=FrozenDict({"sglang": Factor()}),
        overhead=Factor(),
    )
    assert [name for name, _ in found.named()] == ["generation", "engine sglang", "host overhead"]
