import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.checks import check_plan
from planner.mappings import Ranking, divisions_of, plan_of, rule_seconds
from planner.options import OptionTable
from planner.placements import placed_roles, placements, show_placement
from planner.pools import PoolTable
from planner.search import search
from planner.strategies import place, strategy_names
from profiles.catalog import load_job
from profiles.facts import load_facts
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import InfeasibleError, UnknownNameError
from simulator.simulate import simulate
from tests.planner.brute_force import (
    best_by_placement,
    facts_with,
    sets_of,
    small_jobs,
    small_spaces,
)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ROUNDING = 1e-9

# Drawing a space lists its plans, and most jobs have too many of them.
spaces = settings(max_examples=80, suppress_health_check=list(HealthCheck))


def found_by(job, facts):
    """Return the search's result, None if nothing fits."""
    try:
        return search(job, facts)
    except InfeasibleError:
        return None


def test_the_best_plan_is_the_best_of_all_plans():
    excesses = []

    @spaces
    @given(small_spaces(most_plans=150))
    def check(space):
        job, plans, facts = space
        expected = best_by_placement(plans, facts)
        result = found_by(job, facts)
        if result is None:
            assert not expected
            return
        assert {sets_of(each.plan) for each in result.plans} == set(expected)
        best_seconds = min(expected.values())
        winner = result.plans[0]
        assert result.bound_seconds <= best_seconds * (1 + ROUNDING)
        assert winner.forecast.iteration_seconds >= best_seconds * (1 - ROUNDING)
        excesses.append(winner.forecast.iteration_seconds / best_seconds - 1)
        if result.gap == 0:
            assert excesses[-1] <= ROUNDING
        for each in result.plans:
            if len(sets_of(each.plan)) == 1:
                seconds = expected[sets_of(each.plan)]
                assert each.forecast.iteration_seconds == pytest.approx(seconds, rel=ROUNDING)

    check()
    assert len(excesses) >= 60
    assert max(excesses) <= ROUNDING


some = settings(max_examples=15, suppress_health_check=list(HealthCheck))


def rankings(job, facts):
    """Yield the ranking of every placement, as the search makes them."""
    algorithm = load_algorithm(job.algorithm)
    tasks = tasks_of(algorithm, job)
    table = PoolTable(OptionTable(job, algorithm, tasks, facts))
    rule = rule_seconds(job, tasks, facts)
    for placement in placements(placed_roles(job)):
        yield Ranking(divisions_of(placement, job, table, rule), table)


@some
@given(small_jobs(), st.sampled_from([2**28, 2**30, 2**40]))
def test_no_mapping_takes_less_than_its_bound(job, memory_bytes):
    facts = facts_with(job, memory_bytes)
    names = tuple(task.name for task in tasks_of(load_algorithm(job.algorithm), job))
    for ranking in rankings(job, facts):
        last_seconds = 0.0
        for _ in range(4):
            mapping = ranking.next(math.inf)
            if mapping is None:
                break
            forecast = simulate(plan_of(mapping, job, names, "test"), facts)
            assert mapping.bound_seconds <= forecast.iteration_seconds * (1 + ROUNDING)
            assert mapping.bound_seconds >= last_seconds
            assert forecast.feasible
            last_seconds = mapping.bound_seconds


@some
@given(small_jobs(), st.sampled_from([2**28, 2**30, 2**40]))
def test_every_plan_found_is_sound_feasible_and_in_order(job, memory_bytes):
    facts = facts_with(job, memory_bytes)
    result = found_by(job, facts)
    if result is None:
        return
    for each in result.plans:
        check_plan(each.plan)
        assert simulate(each.plan, facts) == each.forecast
        assert each.forecast.feasible
    seconds = [each.forecast.iteration_seconds for each in result.plans]
    assert seconds == sorted(seconds)
    assert [each.loses_seconds for each in result.plans] == [s - seconds[0] for s in seconds]


@some
@given(small_jobs(), st.sampled_from([2**26, 2**28, 2**40]))
def test_every_placement_has_a_best_plan_or_a_reason(job, memory_bytes):
    result = found_by(job, facts_with(job, memory_bytes))
    if result is None:
        return
    every = list(placements(placed_roles(job)))
    feasible = [sets_of(each.plan) for each in result.plans]
    infeasible = {each.placement for each in result.infeasible}
    assert len(set(feasible)) == len(feasible)
    assert len(feasible) + len(infeasible) == len(every)
    for placement in every:
        sets = frozenset(map(frozenset, placement))
        assert (sets in feasible) != (show_placement(placement) in infeasible)
    assert all(each.reason for each in result.infeasible)


@some
@given(small_jobs())
def test_the_certificate_holds_and_the_same_job_gives_the_same_plans(job):
    facts = facts_with(job, 2**40)
    result, again = found_by(job, facts), found_by(job, facts)
    if result is None or again is None:
        assert result is again
        return
    best_seconds = result.plans[0].forecast.iteration_seconds
    assert 0 <= result.gap < 1
    assert result.bound_seconds <= best_seconds
    assert result.gap == (best_seconds - result.bound_seconds) / best_seconds
    assert replace(result, search_seconds=0) == replace(again, search_seconds=0)


@pytest.fixture(scope="module")
def example():
    """Return the example of GRPO on eight H100, with its facts and its search."""
    job = load_job(EXAMPLES / "grpo-qwen2.5-7b-8xh100.yaml")
    facts = load_facts(job)
    return job, facts, search(job, facts)


def test_no_named_strategy_does_better(example):
    job, _, result = example
    by_sets = {sets_of(each.plan): each.forecast.iteration_seconds for each in result.plans}
    for name in strategy_names():
        sets = frozenset(map(frozenset, place(name, placed_roles(job))))
        assert result.plans[0].forecast.iteration_seconds <= by_sets[sets]


def test_what_was_considered_was_pruned_or_simulated(example):
    _, _, result = example
    simulated = result.considered["simulated plans"]
    pruned = result.pruned["the critical path is no shorter than the best plan"]
    assert 0 < simulated < 20
    assert simulated + pruned == result.considered["mappings"]


def test_progress_runs_from_the_first_placement_to_all_of_them(example):
    job, facts, _ = example
    seen = []
    search(job, facts, progress=lambda done, total, what: seen.append((done, total, what)))
    assert seen[0] == (0, 2, "{actor, reference}")
    assert seen[-1][:2] == (2, 2)


def test_a_job_that_fits_nowhere_is_refused_with_the_nearest_miss(example):
    job, _, _ = example
    with pytest.raises(InfeasibleError, match=r"\{actor, reference\} on 8 x h100.* needs at least"):
        search(job, facts_with(job, 2**31))


def test_an_unknown_searcher_is_named(example):
    job, facts, _ = example
    with pytest.raises(UnknownNameError, match="did you mean 'exhaustive'"):
        search(job, facts, searcher="exhaustiv")
