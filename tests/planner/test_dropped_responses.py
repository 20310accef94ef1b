"""Jobs that begin more responses than they learn from: what bounds them, and what a search finds."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.dataflow import begun_work
from rlplan.errors import FileError, InfeasibleError
from rlplan.job import Specs
from rlplan.planner.exact.space import least_responses, priced_job
from rlplan.planner.requests.pinned import Pinned
from rlplan.planner.requests.schedules import ONE_STEP_OFF, SYNC, AskedSchedules, ScheduleSpace
from rlplan.planner.search import search
from rlplan.profiles.facts import load_facts
from rlplan.simulator.generation.over_provisioning import PLAYED_SEQUENCES, kept_of
from rlplan.simulator.generation.shares import ORDER_SEED, evenly_spread, first_shares
from rlplan.simulator.simulate import simulate
from rlplan.simulator.workload import statistics_of
from rlplan.workload import Lognormal
from tests.cases import draws
from tests.planner.brute_force import random_space
from tests.planner.test_streams import (
    LONG_TAILED,
    STREAMING,
    asynchronous,
    bound_of,
    generates_alone,
    pair,
    scheduled,
)

ROUNDING = 1e-9
JOBS, PLANS = draws(3, 12), 3
RATIOS = ((1.25, 1.0), (1.0, 1.5), (1.1, 1.25), (2.0, 1.0), (1.5, 1.0))


def dropping(job, over_provisioning, over_sampling=1.0, **changes):
    ratios = {"over_provisioning": over_provisioning, "over_sampling": over_sampling}
    work = replace(job.workload, **ratios, **changes)
    return replace(job, workload=work)


@given(
    st.integers(1, 12),
    st.integers(1, 6),
    st.sampled_from(RATIOS),
    st.sampled_from(["grpo", "ppo"]),
    st.integers(0, 2**32 - 1),
)
def test_no_choice_of_responses_is_shorter_than_the_least(
    prompts, samples, ratios, algorithm, seed
):
    job = replace(LONG_TAILED, algorithm=algorithm)
    job = dropping(job, *ratios, prompts=prompts, samples_per_prompt=samples)
    kept, generator = kept_of(job), np.random.default_rng(seed)
    _, responses = evenly_spread(
        begun_work(job.workload), np.random.default_rng(ORDER_SEED + seed % 8)
    )
    units = responses[: len(responses) // kept.unit * kept.unit].reshape(-1, kept.unit)
    done = generator.choice(len(units), kept.done(len(units)), replace=False)
    chosen = np.sort(
        [generator.choice(units[unit], kept.needed, replace=False) for unit in done], axis=None
    )
    assert len(chosen) == job.workload.sequences
    least = least_responses(job)
    assert np.all(np.diff(least) >= 0)
    assert np.all(least <= chosen)


def test_of_single_responses_the_shortest_are_the_least():
    job = dropping(replace(LONG_TAILED, algorithm="ppo"), 1.25, prompts=8, samples_per_prompt=1)
    every = np.sort(evenly_spread(begun_work(job.workload), np.random.default_rng(0))[1])
    assert least_responses(job).tolist() == every[:8].tolist()


def test_each_number_of_replicas_that_stand_for_all_is_bounded():
    job = dropping(LONG_TAILED, 1.25, prompts=4096)
    whole, kept = begun_work(job.workload), kept_of(job)
    assert whole.sequences > PLAYED_SEQUENCES
    least = least_responses(job)
    for replicas in range(1, job.gpus + 1):
        shares = first_shares(
            statistics_of(whole), replicas, whole.samples_per_prompt, PLAYED_SEQUENCES
        )
        units = np.concatenate([share[1] for share in shares]).reshape(-1, kept.unit)
        # Those whose longest response is the shortest, which end first where all run side by side.
        first = np.argsort(units.max(axis=1), kind="stable")[: kept.done(len(units))]
        chosen = np.sort(units[first], axis=None)
        at = np.arange(len(least)) * len(chosen) // len(least)
        assert np.all(least <= chosen[at])


def test_a_job_that_drops_nothing_is_priced_as_it_is():
    assert priced_job(LONG_TAILED) is LONG_TAILED
    priced = priced_job(dropping(LONG_TAILED, 1.25)).workload
    assert not priced.drops_responses
    assert priced.sequences == LONG_TAILED.workload.sequences


def drawn_space(generator):
    """Return a small job that drops responses, all plans of it and its facts."""
    while True:
        job, plans, _ = random_space(
            generator, 24, precision="bf16", cluster=pair, specs=Specs(staleness=1)
        )
        mean = generator.choice([20, 60, 200])
        lengths = Lognormal(mean=mean, std=mean * generator.choice([0.5, 1, 2]), max=mean * 5)
        prompts = job.workload.prompts * generator.choice([1, 4, 32])
        job = dropping(job, *generator.choice(RATIOS), prompts=prompts, response_tokens=lengths)
        positions = min(job.architecture(role).max_positions for role in job.models)
        if job.workload.longest_sequence_tokens <= positions:
            return job, [replace(plan, job=job) for plan in plans], load_facts(job)


def plans_in(schedule, plans):
    if not schedule.streams:
        return [plan for plan in plans if plan.mode == schedule.mode]
    alone = [plan for plan in plans if plan.mode == "one-step-off" and generates_alone(plan)]
    return [scheduled(plan, schedule) for plan in alone]


@pytest.mark.full
@pytest.mark.parametrize(
    "schedule",
    [SYNC, ONE_STEP_OFF, STREAMING, asynchronous(1, 1), asynchronous(3, 2)],
    ids=lambda each: each.words,
)
def test_no_iteration_that_drops_responses_is_shorter_than_its_bound(schedule):
    generator, held = random.Random(5), 0
    while held < JOBS:
        job, plans, facts = drawn_space(generator)
        some = plans_in(schedule, plans)
        if not some or (schedule.streams and job.workload.over_sampling > 1):
            continue
        held += 1
        bound = bound_of(job, facts, schedule)
        for plan in generator.sample(some, min(PLANS, len(some))):
            forecast = simulate(plan, facts)
            assert not forecast.feasible or bound <= forecast.iteration_seconds * (1 + ROUNDING)


@pytest.mark.parametrize("ratio", [1.25, 2.0])
def test_no_other_limit_of_running_sequences_beats_a_search_that_begins_more(ratio):
    job = dropping(LONG_TAILED, ratio, prompts=8)
    facts = load_facts(job)
    found = search(job, facts, placements=1)
    best = found.plans[0]
    layout = best.plan.tasks["actor.generate"]
    for running in (1, 4, 8, 10, 16, 32, 64, 256):
        other = best.plan.with_layout("actor.generate", replace(layout, max_running=running))
        forecast = simulate(other, facts)
        bound = best.forecast.iteration_seconds * (1 - found.gap - ROUNDING)
        assert not forecast.feasible or forecast.iteration_seconds >= bound
    if ratio == max(RATIOS)[0]:  # all that are begun run, and not as many as a batch has
        assert layout.max_running == -(-begun_work(job.workload).sequences // layout.dp)


@pytest.mark.full
def test_the_best_of_all_plans_is_as_near_as_the_certificate_says():
    generator, reached = random.Random(3), []
    for _ in range(JOBS):
        job, plans, facts = drawn_space(generator)
        job = replace(job, specs=Specs())
        forecasts = [simulate(plan, facts) for plan in plans if plan.mode == "sync"]
        least = min((f.iteration_seconds for f in forecasts if f.feasible), default=None)
        try:
            found = search(job, facts)
        except InfeasibleError:
            assert least is None
            continue
        seconds = found.plans[0].forecast.iteration_seconds
        assert found.bound_seconds <= least * (1 + ROUNDING)
        assert seconds * (1 - found.gap) <= least * (1 + ROUNDING)
        reached.append(least / seconds)
    assert np.mean(reached) > 0.97


@pytest.mark.full
def test_dropping_the_longest_makes_iterations_shorter_and_leaves_a_small_gap():
    facts = load_facts(LONG_TAILED)
    whole = search(LONG_TAILED, facts).plans[0].forecast.iteration_seconds
    found = search(dropping(LONG_TAILED, 1.25, 1.25), facts)
    assert found.plans[0].forecast.iteration_seconds < 0.8 * whole
    assert 0 < found.gap < 0.1


def test_samples_of_a_prompt_are_dropped_from_whole_batches_alone():
    job = dropping(LONG_TAILED, 1.0, 1.25)
    modes = {each.mode for each in ScheduleSpace(job, Specs(staleness=1))}
    assert modes == {"sync", "one-step-off"}
    asked = Pinned(asked=AskedSchedules(modes=("async",)))
    with pytest.raises(FileError, match=r"workload\.over_sampling: drops .* in mode async"):
        search(job, load_facts(job), pinned=asked)
