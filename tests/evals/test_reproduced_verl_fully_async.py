"""verl's fully asynchronous experiments: what was published, lengths fitted on colocated rows, and the claims."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from rlplan.evals.claims import judged
from rlplan.evals.reproductions import verl_fully_async
from rlplan.evals.reproductions.verl_fully_async import (
    BATCHES,
    CLAIMS,
    LARGER,
    SERIES_30B,
    SIZES,
    STALE,
    Steps,
)
from rlplan.evals.settings.published_points import step_seconds, task_seconds
from rlplan.planner.measured.framework_runs import job_of, plan_of
from rlplan.profiles.facts import load_facts
from rlplan.profiles.sheets import load_framework
from rlplan.results.accuracy import Point
from rlplan.results.forecast import CALL
from rlplan.rules import check_plan
from rlplan.simulator.simulate import simulate
from rlplan.workload import Logged

LENGTHS = Logged(mean=800, max=verl_fully_async.LONGEST_RESPONSE)


@pytest.fixture
def any_lengths(monkeypatch):
    """Let all runs have these lengths: fitting them takes seconds."""
    monkeypatch.setattr(
        verl_fully_async,
        "lengths_by_gpus",
        lambda: dict.fromkeys(verl_fully_async.COLOCATED, LENGTHS),
    )


def point(figure, series, seconds, factor):
    return Point(
        figure=figure, panel="7B", series=series, gpus=1, quantity="seconds", published=seconds,
        forecast=seconds * factor,
    )  # fmt: skip


def published_points(asynchronous=1.0):
    """Return points whose forecasts are the published values, those of asynchronous rows times a factor."""
    tables: dict[tuple[str, str], Mapping[int, float] | Mapping[float, float]] = {
        (SIZES, "apart, {0:g} + {0:g}"): verl_fully_async.APART,
        (STALE, "staleness {:g}"): verl_fully_async.STALENESS,
        (BATCHES, "require_batches {:g}"): verl_fully_async.REQUIRED,
    }
    together, split = SERIES_30B
    return [
        *(
            point(SIZES, f"colocated, {gpus}", each, 1.0)
            for gpus, each in verl_fully_async.COLOCATED.items()
        ),
        *(
            point(figure, words.format(key), each, asynchronous)
            for (figure, words), rows in tables.items()
            for key, each in rows.items()
        ),
        point(LARGER, together, verl_fully_async.COLOCATED_30B, 1.0),
        point(LARGER, split, verl_fully_async.APART_30B, asynchronous),
    ]


def test_speed_ups_of_the_hours_are_those_that_are_published():
    found = [
        verl_fully_async.COLOCATED[2 * each] / seconds
        for each, seconds in verl_fully_async.APART.items()
    ]
    assert found == pytest.approx([1.72, 2.09, 2.67], abs=0.006)
    gain = verl_fully_async.COLOCATED_30B / verl_fully_async.APART_30B
    assert gain == pytest.approx(2.01, abs=0.006)
    assert (
        verl_fully_async.STALENESS[0.5]
        == verl_fully_async.REQUIRED[4]
        == verl_fully_async.APART[64]
    )


def test_every_claim_holds_of_what_was_published_and_none_of_speed_where_overlap_brings_nothing():
    claims = list(judged(CLAIMS, Steps(published_points())))
    assert len(claims) == 10
    assert all(claim.holds for claim in claims)
    worse = [claim for claim in judged(CLAIMS, Steps(published_points(1.6))) if not claim.holds]
    assert sum("times as fast" in claim.text for claim in worse) == 5
    assert sum("within 25 %" in claim.text for claim in worse) == 1


@pytest.mark.usefixtures("any_lengths")
def test_a_step_between_two_syncs_is_taken_in_as_many_parts_as_verl_triggers_updates():
    usual = verl_fully_async.split(64)
    assert (usual.parts, usual.staleness, usual.in_flight) == (4, 3 + 4 * 0.5, "recompute")
    assert verl_fully_async.split(64, required=1).parts == 16
    assert verl_fully_async.split(64, 0.0).mode == "streaming"
    assert usual.rollout_running == 256
    large = verl_fully_async.apart(verl_fully_async.TOGETHER_30B, 32, 96, 0.5, required=1)
    assert (large.parts, large.gpus, large.offloads) == (4, 128, frozenset({"reference"}))


@pytest.mark.usefixtures("any_lengths")
@pytest.mark.parametrize(
    "run_of",
    [
        lambda: verl_fully_async.colocated(32),
        lambda: verl_fully_async.split(16),
        lambda: verl_fully_async.split(64, 0.0),
        lambda: verl_fully_async.TOGETHER_30B,
        lambda: verl_fully_async.apart(
            replace(verl_fully_async.TOGETHER_30B, framework="verl-fully-async", engines=verl_fully_async.ENGINES_30B),
            32, 96, 0.5, 1,
        ),
    ],
)  # fmt: skip
def test_their_plans_keep_all_rules(run_of):
    run = run_of()
    check_plan(plan_of(run, job_of(run)))


@pytest.mark.full
def test_fitted_lengths_are_those_at_which_colocated_steps_and_the_share_of_generation_are_right():
    for gpus, seconds in verl_fully_async.COLOCATED.items():
        fitted = verl_fully_async.measured_seconds(verl_fully_async.colocated(gpus))
        assert fitted == pytest.approx(seconds, rel=0.01)
    run = verl_fully_async.colocated(verl_fully_async.SHARED_GPUS)
    share = task_seconds(run)["actor.generate"] / step_seconds(run)
    assert share == pytest.approx(verl_fully_async.GENERATION_SHARE, rel=0.02)


@pytest.mark.usefixtures("any_lengths")
def test_a_colocated_trainer_hands_on_padded_rows_and_an_asynchronous_one_none():
    def handed_on_seconds(run):
        job = job_of(run)
        costs = simulate(plan_of(run, job), load_facts(job)).costs
        (update,) = (each for each in costs if each.name == "actor.update")
        return update.parts.get(CALL, 0.0)

    run = verl_fully_async.colocated(128)
    each_seconds = load_framework(run.framework).call("train").seconds_per_padded_token
    longest = job_of(run).workload.longest_sequence_tokens
    assert longest > verl_fully_async.LONGEST_RESPONSE
    handed_on = each_seconds * verl_fully_async.PROMPTS * verl_fully_async.SAMPLES * longest
    assert handed_on_seconds(run) == pytest.approx(handed_on) != 0
    assert handed_on_seconds(verl_fully_async.split(64)) == 0
