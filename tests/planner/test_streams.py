"""Schedules that a search looks at, and bounds on iterations whose responses stream, held to what is simulated."""

import math
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from rlplan.calibration import Calibration, Factor
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Rewards, Role, Specs
from rlplan.models import ModelArchitecture
from rlplan.planner.exact.best_first import PlacementSearch, SearchBudget
from rlplan.planner.exact.placement_bounds import PLAYED_NOISE_FRACTION
from rlplan.planner.exact.space import Space
from rlplan.planner.placements.partitions import GENERATION, Placement, all_placements
from rlplan.planner.requests.pinned import Pinned
from rlplan.planner.requests.schedules import (
    IN_FLIGHT,
    ONE_STEP_OFF,
    SYNC,
    AskedSchedules,
    Schedule,
    ScheduleSpace,
    schedule_of,
)
from rlplan.planner.search import search
from rlplan.planner.searchers.exact import suits
from rlplan.profiles.catalog import load_job, load_model
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from rlplan.workload import Environment, Lognormal, LognormalSeconds, Uniform, Workload, longest
from tests.cases import draws
from tests.planner.brute_force import random_space

ROUNDING = 1e-9
THREE_POOLS: Placement = ((GENERATION,), ("actor",), ("reference",))
# Half of it is what means of finitely many iterations are off.
LARGEST_GAP = 2 * PLAYED_NOISE_FRACTION
PPO = Path(__file__).parents[2] / "examples/ppo-7b-16xa100.yaml"
A100 = "a100-80gb-sxm"
STREAMING = Schedule("streaming")
# Of engines that batch continuously, plans of each schedule and job.
JOBS, PLANS = draws(2, 6), 2

pair = (NodeGroup(gpu=A100, gpus_per_node=2, cpu_cores=2, inter_node_gbps=200.0),)
four = (NodeGroup(gpu=A100, gpus_per_node=4, cpu_cores=8, inter_node_gbps=200.0),)
LONG_TAILED = Job(
    algorithm="grpo",
    models=FrozenDict(dict.fromkeys(("actor", "reference"), load_model("qwen2.5-1.5b"))),
    workload=Workload(
        prompts=32,
        samples_per_prompt=4,
        prompt_tokens=256,
        response_tokens=Lognormal(mean=1000, std=1000, max=8000),
    ),
    cluster=four,
    engines=Engines(train="megatron-core", generate="vllm"),
    precision="bf16",
    rewards=Rewards(function="digits"),
)


def asynchronous(staleness, every):
    return Schedule("async", staleness, every, IN_FLIGHT)


def listed(specs=Specs(), job=LONG_TAILED, **asked):  # noqa: B008 -- specs are frozen
    return tuple(ScheduleSpace(job, specs, AskedSchedules(**asked)))


def test_iterations_overlap_only_as_far_as_the_staleness_allows():
    assert listed() == (SYNC,)
    assert listed(Specs(staleness=0)) == (SYNC, STREAMING)
    assert listed(Specs(staleness=0.5)) == (SYNC, STREAMING, asynchronous(0.5, 1))
    assert listed(Specs(staleness=1)) == (
        SYNC,
        STREAMING,
        ONE_STEP_OFF,
        asynchronous(1, 1),
        asynchronous(1, 2),
    )
    every = [each.sync_every for each in listed(Specs(staleness=4)) if each.mode == "async"]
    assert every == [1, 2, 4]


def test_schedules_are_said_in_words():
    assert STREAMING.words == "mode streaming"
    words = "mode async, weights synced every 2 iterations, at most 3 updates old"
    assert asynchronous(2.5, 2).words == words


def test_what_the_user_names_of_a_schedule_is_kept():
    assert listed(modes=("async",)) == (asynchronous(1, 1), asynchronous(1, 2))
    assert listed(modes=("async",), staleness=3, sync_every=3, in_flight="keep") == (
        Schedule("async", 3, 3, "keep"),
    )
    assert listed(Specs(staleness=4), modes=("sync", "one-step-off")) == (SYNC, ONE_STEP_OFF)


@pytest.mark.parametrize(
    ("framework", "kept"), [("rlplan", IN_FLIGHT), ("nemo-rl", "keep"), ("openrlhf", "drain")]
)
def test_responses_under_way_go_on_as_the_framework_has_it(framework, kept):
    job = replace(LONG_TAILED, framework=framework)
    assert {each.in_flight for each in listed(Specs(staleness=4), job) if each.mode == "async"} == {
        kept
    }
    assert listed(job=job, modes=("async",), in_flight="recompute")[0].in_flight == "recompute"


TOOLS = (
    Environment(name="tool", turns=2, observation_tokens=10, step_seconds=1.0),
    Environment(
        name="world",
        turns=Uniform(low=1, high=6),
        observation_tokens=100,
        step_seconds=LognormalSeconds(mean=2.0, std=2.0, max=20.0),
        reset_seconds=0.5,
    ),
    Environment(
        name="late", turns=4, observation_tokens=9, step_seconds=3.0, episode_limit_seconds=8.0
    ),
)


def with_environment(job, environment, **changes):
    work = replace(job.workload, environments=(environment,), **changes)
    cluster = tuple(replace(each, cpu_cores=64) for each in job.cluster)
    return replace(job, workload=work, cluster=cluster)


def test_episodes_are_streamed_as_responses_are():
    job = with_environment(LONG_TAILED, TOOLS[0])
    assert listed(Specs(staleness=2), job) == listed(Specs(staleness=2))


def drawn_jobs(seed, jobs):
    """Yield what draws, a job, its plans one step off that generate on GPUs of their own, and facts, so many times."""
    generator, held = random.Random(seed), 0
    while held < jobs:
        job, plans, facts = random_space(
            generator, 24, precision="bf16", cluster=pair, specs=Specs(staleness=1)
        )
        alone = [plan for plan in plans if plan.mode == "one-step-off" and generates_alone(plan)]
        if alone:
            held += 1
            yield generator, job, alone, facts


def bound_of(job, facts, schedule, simulations=0, objective="throughput"):
    """Return what no plan with a schedule is worth less than, after so many simulations of each placement."""
    space = Space(replace(job, objective=objective), facts, {}, objective, job.specs)
    found = []
    for placement in all_placements(job):
        if suits(placement, schedule):
            each = PlacementSearch(space, placement, schedule)
            each.exact(math.inf, SearchBudget(simulations=simulations))
            found.append(each.found.bound)
    return min(found)


@pytest.mark.full
@pytest.mark.parametrize("simulations", [0, 4])
@pytest.mark.parametrize(
    "schedule", [STREAMING, asynchronous(1, 1), asynchronous(3, 4)], ids=lambda each: each.words
)
def test_no_streamed_iteration_is_shorter_than_its_bound(schedule, simulations):
    for generator, job, alone, facts in drawn_jobs(7, JOBS):
        bound = bound_of(job, facts, schedule, simulations)
        for plan in generator.sample(alone, min(PLANS, len(alone))):
            forecast = simulate(scheduled(plan, schedule), facts)
            assert not forecast.feasible or bound <= forecast.iteration_seconds * (1 + ROUNDING)


@pytest.mark.full
@pytest.mark.parametrize("schedule", [STREAMING, asynchronous(3, 2)], ids=lambda each: each.words)
@pytest.mark.parametrize("environment", TOOLS, ids=lambda each: each.name)
@pytest.mark.parametrize("most", [None, 900])
def test_no_iteration_of_streamed_episodes_is_shorter_than_its_bound(schedule, environment, most):
    generator = random.Random(f"{environment.name} {most}")
    while True:
        job, plans, _ = random_space(
            generator, 24, precision="bf16", cluster=pair, specs=Specs(staleness=1)
        )
        alone = [plan for plan in plans if plan.mode == "one-step-off" and generates_alone(plan)]
        if alone and longest(job.workload.prompt_tokens) < (most or math.inf):
            break
    job = with_environment(job, environment, max_total_tokens=most)
    facts = load_facts(job)
    bound = bound_of(job, facts, schedule)
    for plan in generator.sample(alone, min(PLANS, len(alone))):
        forecast = simulate(scheduled(replace(plan, job=job), schedule), facts)
        assert not forecast.feasible or bound <= forecast.iteration_seconds * (1 + ROUNDING)


@pytest.mark.full
@pytest.mark.parametrize(
    "schedule", [STREAMING, asynchronous(1, 2), asynchronous(4, 2)], ids=lambda each: each.words
)
def test_more_work_beside_generation_makes_no_iteration_shorter(schedule, streamed):
    """One simulation speaks for all layouts of the other pool, decision 7 says why."""
    plan, facts = scheduled(streamed.plans[0].plan, schedule), load_facts(LONG_TAILED)
    seconds = [
        simulate(with_update(plan, recompute=each), facts).iteration_seconds
        for each in ("none", "selective", "full")
    ]
    for less, more in pairwise(seconds):
        assert more >= less * (1 - PLAYED_NOISE_FRACTION)


@pytest.mark.full
@pytest.mark.parametrize(
    "schedule", [asynchronous(0.5, 1), asynchronous(1, 2)], ids=lambda each: each.words
)
def test_no_iteration_is_shorter_than_noise_allows_where_a_site_trains_or_prepares_for_longer(
    schedule,
):
    """Not a theorem (decision 7): iterations that are shorter by a hundredth of a percent are found, and bounds leave 2 %."""
    for generator, _, alone, facts in drawn_jobs(5, 2):
        plan = scheduled(generator.choice(alone), schedule)
        usual = simulate(plan, facts).iteration_seconds
        for kinds in (("training",), ("training", "inference")):
            more = Factor(value=1 + 2 * generator.random() ** 2)
            slower = Calibration(stages=FrozenDict(dict.fromkeys(kinds, more)))
            longer = simulate(plan, facts.with_calibration(slower)).iteration_seconds
            assert longer >= usual * (1 - PLAYED_NOISE_FRACTION)


def with_update(plan, **settings):
    update = replace(plan.tasks["actor.update"], **settings)
    return replace(plan, tasks=FrozenDict({**plan.tasks, "actor.update": update}))


@pytest.fixture(scope="module")
def streamed():
    """Return what is found on two pools in mode async."""
    asked = AskedSchedules(modes=("async",), staleness=2, sync_every=2, in_flight="keep")
    return search(LONG_TAILED, load_facts(LONG_TAILED), pinned=Pinned(asked=asked))


@pytest.mark.full
def test_the_gap_of_two_pools_is_closed_by_simulation(streamed):
    assert streamed.plans[0].gap < LARGEST_GAP


@pytest.mark.full
def test_the_gap_of_three_pools_is_closed_by_simulation(streamed):
    """A simulation speaks of all choices with no less work on either of two pools beside generation."""
    space = Space(LONG_TAILED, load_facts(LONG_TAILED), {}, "throughput", LONG_TAILED.specs)
    schedule = schedule_of(streamed.plans[0].plan)
    few, many = (of_three_pools(space, schedule, number) for number in (0, 16))
    assert few.bound < many.bound <= many.value * (1 + ROUNDING)
    assert 1 - many.bound / many.value < LARGEST_GAP + ROUNDING


def of_three_pools(space, schedule, simulations):
    """Return what is found where generation, the actor and the reference have a pool each."""
    placement = next(each for each in all_placements(space.job) if set(each) == set(THREE_POOLS))
    search_of = PlacementSearch(space, placement, schedule)
    search_of.quick()
    search_of.exact(math.inf, SearchBudget(simulations=simulations))
    return search_of.found


@pytest.mark.full
def test_no_plan_beats_what_a_search_within_a_limit_of_staleness_proves():
    schedules = (SYNC, STREAMING, asynchronous(1, 1), asynchronous(1, 2))
    for generator, job, alone, facts in drawn_jobs(11, JOBS):
        found = search(job, facts)
        for plan in generator.sample(alone, min(PLANS, len(alone))):
            for schedule in (ONE_STEP_OFF, *schedules):
                forecast = simulate(scheduled(plan, schedule), facts)
                seconds = forecast.iteration_seconds
                assert not forecast.feasible or found.bound_seconds <= seconds * (1 + ROUNDING)


@pytest.mark.full
def test_a_limit_of_staleness_leaves_a_small_gap_on_many_gpus():
    """45 placements and schedules stream; most are ruled out by the layouts of all their pools together."""
    job = load_job(PPO)
    models = FrozenDict[Role, str | ModelArchitecture](
        dict.fromkeys(job.models, load_model("llama-2-70b"))
    )
    job = replace(job, models=models, cluster=(replace(job.cluster[0], nodes=32),))
    found = search(job, load_facts(job), specs=Specs(staleness=1))
    assert found.gap <= PLAYED_NOISE_FRACTION + ROUNDING


@pytest.mark.full
def test_a_choice_that_streams_is_simulated_once():
    space = Space(LONG_TAILED, load_facts(LONG_TAILED), {}, "throughput", LONG_TAILED.specs)
    search_of = PlacementSearch(space, THREE_POOLS, STREAMING)
    search_of.quick()
    found, before = search_of.found, space.tally.considered["simulated plans"]
    assert search_of.simulated(found.choice).value == found.value
    assert space.tally.considered["simulated plans"] == before == search_of.streamed


def generates_alone(plan):
    others = [name for name in plan.tasks if name != GENERATION]
    return all(plan.tasks[name].pool != plan.tasks[GENERATION].pool for name in others)


def scheduled(plan, schedule):
    return replace(
        plan,
        mode=schedule.mode,
        staleness=schedule.staleness,
        sync_every=schedule.sync_every,
        in_flight=schedule.in_flight,
    )


@pytest.mark.full
def test_a_long_tail_is_hidden_by_the_mode_that_may_hide_it():
    facts = load_facts(LONG_TAILED)
    results = [search(LONG_TAILED, facts, specs=Specs(staleness=limit)) for limit in (None, 1)]
    (alone, ahead), plan = (each.plans[0] for each in results), results[1].plans[0].plan
    assert schedule_of(alone.plan) == SYNC
    assert plan.mode == "async"
    assert plan.staleness == 1
    assert ahead.forecast.iteration_seconds < 0.9 * alone.forecast.iteration_seconds
    assert 0 <= results[1].gap < 0.35
    words = "placements in mode async, weights synced every 2 iterations, at most 1 updates old"
    assert results[1].considered[words] > 0


@pytest.mark.full
def test_a_pinned_mode_is_the_only_one(streamed):
    for each in streamed.plans:
        assert schedule_of(each.plan) == Schedule("async", 2, 2, "keep")
