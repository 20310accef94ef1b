"""How long the sets of a placement may work, and where they may be, in plans below a value."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rlplan.job import NO_SPECS
from rlplan.planner.exact.placement_bounds import (
    PROMISING_PLACES,
    Budget,
    OtherPools,
    PlacementBounds,
    least_beside,
)
from rlplan.planner.exact.space import Space
from rlplan.planner.placements.partitions import all_placements
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import load_facts
from tests.planner.brute_force import facts_with, small_jobs

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ppo-7b-16xa100.yaml"
SOME = settings(max_examples=settings().max_examples // 4, suppress_health_check=list(HealthCheck))

rates = st.just(0.0) | st.floats(0.01, 500.0)
seconds = st.floats(0.0, 1000.0)


@given(st.tuples(rates, rates, rates), st.tuples(seconds, seconds), st.tuples(seconds, seconds))
def test_what_a_budget_pays_for_is_within_its_limits(prices, least, more):
    work, generation = least[0] + more[0], least[1] + more[1]
    waiting, working, generating = prices
    spent = waiting * (work + generation) + working * work + generating * generation
    budget = Budget(spent, waiting, working, generating)
    assert work <= budget.work_seconds(least[1]) * (1 + 1e-9) + 1e-6
    assert work + generation <= budget.pool_seconds(least[0], least[1]) * (1 + 1e-9) + 1e-6


def test_generation_is_paid_before_work():
    budget = Budget(left=1000.0, waiting=2.0, working=8.0, generating=3.0)
    assert budget.work_seconds(100.0) == pytest.approx(50.0)
    assert budget.pool_seconds(50.0, 100.0) == pytest.approx(150.0)


def test_what_costs_nothing_has_no_limit():
    assert Budget(1.0, 0.0, 0.0, 0.0).work_seconds(5.0) == float("inf")


def spaces(job, facts, objective):
    """Return the bounds of all placements of a job, by one objective."""
    space = Space(job, facts, {}, objective, NO_SPECS)
    return [PlacementBounds(space, placement) for placement in all_placements(job)]


def worth(bounds, places):
    """Return what plans with their sets at these places are worth at least, each set by itself; infinite where they do not fit."""
    space, score = bounds.space, bounds.space.score
    used = np.sum([bounds.used(share) for share, _ in places], axis=0)
    if np.any(used > space.limits):
        return math.inf
    generate = bounds.table.least_seconds(places[bounds.generating][1])
    if math.isinf(generate):
        return math.inf
    least = [
        space.pools.least(members, site).whole_seconds
        for members, (_, site) in zip(bounds.placement, places, strict=True)
    ]
    work = np.zeros(score.computing.shape[1])
    for index, ((share, _), own) in enumerate(zip(places, least, strict=True)):
        device = space.device(share)
        work += score.computing[device] * share.gpus * own
        if index == bounds.generating:
            work += score.moving[device] * share.gpus * generate
    return float(score.values(np.array(generate + max(least)), used, work))


def check_places(bounds, share_of_worst):
    """Hold the places that are left under a cutoff to all choices of places, one by one."""
    values = {
        places: worth(bounds, places)
        for places in itertools.islice(itertools.product(*bounds.places), 5000)
    }
    finite = sorted(value for value in values.values() if math.isfinite(value))
    cutoff = finite[round(share_of_worst * (len(finite) - 1))] if finite else 1.0
    left = bounds.limits(cutoff).places
    for places, value in values.items():
        if value < cutoff * (1 - 1e-9):
            assert all(place in own for place, own in zip(places, left, strict=True))
    return sum(map(len, bounds.places)) - sum(map(len, left))


@SOME
@given(
    small_jobs(),
    st.sampled_from(["throughput", "cost", "energy"]),
    st.sampled_from([2**30, 2**40]),
    st.floats(0, 1),
)
def test_places_that_are_left_out_have_no_plan_below_the_cutoff(
    job, objective, memory_bytes, share
):
    for bounds in spaces(job, facts_with(job, memory_bytes), objective):
        check_places(bounds, share)


@pytest.mark.parametrize("objective", ["throughput", "cost", "energy"])
def test_places_of_small_clusters_are_left_out_where_others_would_lack_gpus(objective):
    job = load_job(EXAMPLE)
    every = spaces(job, load_facts(job), objective)
    left_out = [check_places(bounds, 0.05) for bounds in every[:6]]
    assert max(left_out) > 0


@pytest.mark.parametrize("objective", ["throughput", "cost"])
@pytest.mark.parametrize("nodes", [2, 12])
def test_bounds_of_the_places_that_are_not_asked_for_are_above_those_of_the_best_two(
    objective, nodes
):
    job = load_job(EXAMPLE)
    job = replace(job, cluster=(replace(job.cluster[0], nodes=nodes),))
    asked = 0
    for bounds in spaces(job, load_facts(job), objective):
        places, rest = bounds.places[bounds.generating], bounds._least_of_others()
        found = sorted(value for value, _ in bounds._least_values)
        asked += len(places) - len(found)
        sites = [site for _, site in places]
        generate = np.array([bounds.table.least_seconds(site) for site in sites])
        every = bounds._least_at(places, generate, rest).min(axis=1) if places else []
        best = sorted(value for value in every if math.isfinite(value))[:PROMISING_PLACES]
        assert found[:PROMISING_PLACES] == pytest.approx(best, rel=1e-12)
    assert asked > 0


# Rounded, so that equal seconds are drawn too.
stage_seconds = st.floats(0, 100).map(lambda value: round(value, 1))


@given(
    arrays(float, st.tuples(st.integers(1, 6), st.just(2)), elements=stage_seconds),
    arrays(float, st.tuples(st.integers(1, 6), st.just(2)), elements=stage_seconds),
)
def test_stages_beside_other_pools_end_with_the_slowest_pool_of_the_best_choice(own, others):
    nothing = np.zeros((len(others), 0))
    stages = np.column_stack([others, np.zeros_like(others)])
    some = OtherPools(
        nothing.astype(np.int64), stages, nothing, nothing, nothing, nothing.astype(np.int64)
    )
    found = least_beside(own[:, 0], own[:, 1], some)
    for (prepare, train), least in zip(own, found, strict=True):
        each = [max(prepare, first) + max(train, second) for first, second in others]
        assert least == min(each)


def test_a_cutoff_below_everything_leaves_no_place():
    job = replace(load_job(EXAMPLE), name="none")
    bounds = spaces(job, load_facts(job), "throughput")[3]
    assert all(not own for own in bounds.limits(1e-6).places)
