"""Whether any plan fits is told without seconds, and told as a search of all plans does."""

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlplan.errors import InfeasibleError
from rlplan.job import NO_SPECS, Specs
from rlplan.planner.answers.fitting import FitRequest, fit
from rlplan.planner.exact.first_plans import (
    fits_somewhere,
    lean_plan,
    plan_on_all_gpus,
    still_fits,
)
from rlplan.planner.exact.space import forget
from rlplan.planner.search import search
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from tests.cases import draws
from tests.planner.brute_force import facts_with, random_space, small_jobs

few = settings(max_examples=settings().max_examples // 8, suppress_health_check=list(HealthCheck))


def finds_some(job, facts):
    """Tell whether a search, to its end, has a plan."""
    try:
        return bool(search(job, facts, specs=NO_SPECS).plans)
    except InfeasibleError:
        return False


@few
@given(small_jobs(), st.floats(26, 34))
def test_what_fits_without_seconds_is_what_a_search_finds(job, size):
    facts = facts_with(job, round(2**size))
    assert fits_somewhere(job, facts) == finds_some(job, facts)


@pytest.mark.parametrize("seed", range(draws(1, 12)))
def test_where_few_of_all_plans_fit_one_is_found(seed):
    job, plans, facts = random_space(random.Random(seed), 200)
    assert fits_somewhere(job, facts) == any(simulate(plan, facts).feasible for plan in plans)


def test_a_first_plan_is_on_all_gpus_and_leaves_the_memory_free_that_it_has_to():
    job = FitRequest(algorithm="grpo", model="tiny", gpu="cpu", gpus=2).job()
    facts = load_facts(job)
    plan = plan_on_all_gpus(job, facts, Specs(memory_headroom_fraction=0.1))
    assert [pool.gpus for pool in plan.pools if not pool.is_host] == [2]
    assert simulate(plan, facts).free_fraction >= 0.1 - 1e-9


@few
@given(small_jobs(), st.floats(26, 34), st.integers(1, 4000))
def test_a_plan_that_fits_another_job_too_says_that_some_plan_fits_it(job, size, tokens):
    facts = facts_with(job, round(2**size))
    other = replace(job, workload=replace(job.workload, response_tokens=tokens))
    plan = lean_plan(job, facts)
    if plan is None:
        return
    assert still_fits(plan, job, facts)
    if still_fits(plan, other, facts):
        assert fits_somewhere(other, facts)


def test_what_needs_least_of_gpus_may_need_more_of_their_host_than_there_is():
    job = FitRequest(algorithm="grpo", model="qwen2.5-32b", gpu="h200", gpus=8).job()
    hosts = replace(job.cluster[0], host_memory_bytes=128 * 2**30)  # optimizers alone are 400 GiB
    facts = load_facts(job)
    assert lean_plan(job, facts.with_memory(0.55)) is not None
    small = replace(job, cluster=(hosts,))
    assert lean_plan(small, facts.with_memory(0.55)) is None
    plan = lean_plan(small, facts)
    assert simulate(plan, facts).feasible
    assert not plan.tasks["actor.update"].offload


def longest_asked_each_time(asked, most):
    """Return the longest responses by asking for all plans at each step, from 1,024 tokens, which fit."""
    job = asked.job()

    def can(tokens):
        work = replace(asked.work, response_tokens=tokens)
        return fits_somewhere(replace(asked, work=work).job(), load_facts(job))

    low, high = 1024, 2048
    while high < most and can(high):
        low, high = high, 2 * high
    if high >= most:
        if can(most):
            return most
        high = most
    while high - low > max(1024, 0.1 * low):
        middle = (low + high) // 2 // 1024 * 1024
        if middle <= low:
            break
        low, high = (middle, high) if can(middle) else (low, middle)
    return low


@pytest.mark.full
@pytest.mark.parametrize(
    ("algorithm", "model", "gpus", "most"),
    [
        ("grpo", "qwen2.5-32b", 8, 31744),
        ("grpo", "qwen2.5-7b", 8, 31744),
        ("ppo", "llama-2-70b", 128, 3072),
    ],
)
def test_the_longest_responses_are_those_that_asking_for_all_plans_each_time_finds(
    algorithm, model, gpus, most
):
    asked = FitRequest(algorithm=algorithm, model=model, gpu="h100-80gb-sxm", gpus=gpus)
    assert fit(asked).longest_response_tokens == longest_asked_each_time(asked, most)


def found_or_why(job, facts, specs=NO_SPECS, **options):
    """Return what a search finds, or why it finds nothing."""
    try:
        return search(job, facts, specs=specs, **options)
    except InfeasibleError as error:
        return str(error)


@few
@given(small_jobs(), st.floats(27, 34))
def test_the_winner_alone_is_the_winner_of_all(job, size):
    facts = facts_with(job, round(2**size))
    every, alone = found_or_why(job, facts), found_or_why(job, facts, placements=1)
    if isinstance(every, str):
        assert alone == every
        return
    assert alone.plans[0].plan == every.plans[0].plan
    assert (alone.gap, alone.bound_seconds) == (every.gap, every.bound_seconds)
    assert alone.infeasible == ()


@pytest.mark.full
@few
@given(small_jobs(), st.floats(27, 34), st.sampled_from([0.0, 1.0, 2.0]))
def test_the_winner_alone_is_the_winner_of_all_where_samples_may_be_handed_on(job, size, staleness):
    facts, specs = facts_with(job, round(2**size)), Specs(staleness=staleness)
    every = found_or_why(job, facts, specs)
    forget()  # else the second would know how the first ended
    alone = found_or_why(job, facts, specs, placements=1)
    if isinstance(every, str):
        assert alone == every
        return
    assert alone.plans[0].plan == every.plans[0].plan
    assert (alone.gap, alone.bound_seconds) == (every.gap, every.bound_seconds)


@few
@given(small_jobs(), st.floats(27, 34), st.integers(2, 6))
def test_as_many_of_the_best_placements_as_are_asked_for_are_the_first_of_all(job, size, number):
    facts = facts_with(job, round(2**size))
    every, best = found_or_why(job, facts), found_or_why(job, facts, placements=number)
    if isinstance(every, str):
        assert best == every
        return
    assert best.plans[:number] == every.plans[:number]
    assert (best.gap, best.bound_seconds) == (every.gap, every.bound_seconds)
    assert set(best.plans) <= set(every.plans)
    assert not set(best.left_out) & {each.plan.placement for each in best.plans}
    known = {each.plan.placement for each in every.plans} | {
        each.placement for each in every.infeasible
    }
    told = {each.plan.placement for each in best.plans} | {
        each.placement for each in best.infeasible
    }
    assert len(known) == len(told) + len(best.left_out)
