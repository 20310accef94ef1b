"""verl's fully asynchronous experiments: what was published, lengths fitted on colocated rows, and the claims."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from planner.evaluation.settings.framework_runs import job_of, plan_of
from planner.evaluation.verl_fully_async import runs
from planner.evaluation.verl_fully_async.claims import (
    BATCHES,
    LARGER,
    SERIES_30B,
    SIZES,
    STALE,
    claims_of,
    figure_of,
)
from rlplan.results.reproduced import Point
from rlplan.rules import check_plan
from rlplan.workload.lengths import Logged

LENGTHS = Logged(mean=800, max=runs.LONGEST_RESPONSE)
FITTED = runs.Fitted(runs.USUAL, dict.fromkeys(runs.COLOCATED, LENGTHS))


def point(table, fit, series, seconds, factor):
    return Point(
        figure=figure_of(table, fit), panel="7B", series=series, gpus=1, quantity="seconds", published=seconds,
        forecast=seconds * factor,
    )  # fmt: skip


def published_points(asynchronous=1.0):
    """Return points whose forecasts are the published values, those of asynchronous rows times a factor."""
    found = []
    for fit in (runs.USUAL, runs.ENDLESS):
        for gpus, seconds in runs.COLOCATED.items():
            found.append(point(SIZES, fit, f"colocated, {gpus}", seconds, 1.0))
        tables: dict[tuple[str, str], Mapping[int, float] | Mapping[float, float]] = {
            (SIZES, "apart, {0:g} + {0:g}"): runs.APART,
            (STALE, "staleness {:g}"): runs.STALENESS,
            (BATCHES, "require_batches {:g}"): runs.REQUIRED,
        }
        for (figure, words), rows in tables.items():
            for key, seconds in rows.items():
                found.append(point(figure, fit, words.format(key), seconds, asynchronous))
    together, split = SERIES_30B
    found.append(point(LARGER, runs.USUAL, together, runs.COLOCATED_30B, 1.0))
    return [*found, point(LARGER, runs.USUAL, split, runs.APART_30B, asynchronous)]


def test_speed_ups_of_the_hours_are_those_that_are_published():
    found = [runs.COLOCATED[2 * each] / seconds for each, seconds in runs.APART.items()]
    assert found == pytest.approx([1.72, 2.09, 2.67], abs=0.006)
    gain = runs.COLOCATED_30B / runs.APART_30B
    assert gain == pytest.approx(2.01, abs=0.006)
    assert runs.STALENESS[0.5] == runs.REQUIRED[4] == runs.APART[64]


def test_every_claim_holds_of_what_was_published_and_none_of_speed_where_overlap_brings_nothing():
    claims = list(claims_of(published_points()))
    assert len(claims) == 19
    assert all(claim.holds for claim in claims)
    worse = [claim for claim in claims_of(published_points(1.6)) if not claim.holds]
    assert sum("times as fast" in claim.text for claim in worse) == 9
    assert sum("within 25 %" in claim.text for claim in worse) == 2


def test_a_step_between_two_syncs_is_taken_in_as_many_parts_as_verl_triggers_updates():
    usual = FITTED.apart(64)
    assert (usual.parts, usual.staleness, usual.in_flight) == (4, 3 + 4 * 0.5, "recompute")
    assert FITTED.apart(64, required=1).parts == 16
    assert FITTED.apart(64, 0.0).mode == "streaming"
    assert usual.rollout_running == 256
    large = runs.apart(runs.TOGETHER_30B, 32, 96, 0.5, required=1)
    assert (large.parts, large.gpus, large.offloads) == (4, 128, frozenset({"reference"}))


@pytest.mark.parametrize(
    "run",
    [
        FITTED.colocated(32),
        FITTED.apart(16),
        FITTED.apart(64, 0.0),
        runs.TOGETHER_30B,
        runs.apart(
            replace(runs.TOGETHER_30B, framework="verl-fully-async", engines=runs.ENGINES_30B),
            32, 96, 0.5, 1,
        ),
    ],
)  # fmt: skip
def test_their_plans_keep_all_rules(run):
    check_plan(plan_of(run, job_of(run)))


def test_the_fitted_mean_is_that_at_which_the_colocated_step_is_right():
    run = replace(runs.TOGETHER, gpus=128)
    lengths = runs.usual_lengths(run, runs.COLOCATED[128])
    fitted = runs.measured_seconds(replace(run, response_tokens=lengths))
    assert fitted == pytest.approx(runs.COLOCATED[128], rel=0.01)


def test_a_share_that_never_ends_makes_asynchronous_training_gain_more():
    endless = runs.Fitted(
        runs.ENDLESS, dict.fromkeys(runs.COLOCATED, replace(LENGTHS, clip_ratio=0.001))
    )
    gains = [
        runs.measured_seconds(fit.colocated(128)) / runs.measured_seconds(fit.apart(64))
        for fit in (FITTED, endless)
    ]
    assert gains[1] > 1.3 * gains[0] > 1.3
