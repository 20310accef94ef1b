"""Plans in modes streaming and async, and with more begun than is learnt from, through `simulate`."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import FileError
from rlplan.estimate import P90_DEVIATIONS
from rlplan.executor.control.feeds.rollouts import Rollouts
from rlplan.files.frozen import FrozenDict
from rlplan.job import Rewards
from rlplan.plan import ResourcePool, TaskPlan
from rlplan.profiles.facts import load_facts
from rlplan.rules.batches import handed_over_parts
from rlplan.simulator.asynchronous.forecasting import stream_of
from rlplan.simulator.asynchronous.setting import BRIEF_EFFORT, COUNTED_SEQUENCES
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.agenda import agenda_of
from rlplan.workload import Environment, Lognormal
from tests.simulator.plans import priced_plan


def apart(mode="async", *, over=1.0, updates=2, samples=4, **changes):
    """Return GRPO's plan that trains on two GPUs and generates on two."""
    plan = priced_plan()
    lengths = Lognormal(mean=200, std=150, max=1000)
    work = replace(
        plan.job.workload, prompts=32, samples_per_prompt=samples, response_tokens=lengths,
        updates=updates, over_provisioning=over,
    )  # fmt: skip
    models = FrozenDict({name: plan.job.models[name] for name in ("actor", "reference")})
    job = replace(
        plan.job, algorithm="grpo", workload=work, models=models,
        rewards=Rewards(function="exact_match", function_seconds_per_sample=0.001),
    )  # fmt: skip
    trained = TaskPlan(pool="t", dp=2, engine="megatron-core")
    tasks = {
        "actor.generate": TaskPlan(pool="g", dp=2, engine="vllm", max_running=64),
        "reference.compute_log_prob": trained,
        "rule.compute_reward": TaskPlan(pool="h", dp=4, engine="python"),
        "actor.update": trained,
    }
    device = "a100-80gb-sxm"
    pools = (
        ResourcePool(name="t", device=device, gpus=2, roles=("actor", "reference")),
        ResourcePool(name="g", device=device, gpus=2, roles=("actor",)),
        ResourcePool(name="h", device="host", gpus=4, roles=("rule",)),
    )
    order = {
        "t": ("reference.compute_log_prob", "actor.update"),
        "g": ("actor.generate",),
        "h": ("rule.compute_reward",),
    }
    fields = {
        "job": job, "pools": pools, "tasks": FrozenDict(tasks), "order": FrozenDict(order),
        "mode": mode, "transition": "two-copies", "staleness": 1.0 if mode != "streaming" else 0.0,
    }  # fmt: skip
    return replace(plan, **(fields | changes))


def forecast(plan, **options):
    return simulate(plan, load_facts(plan.job), **options)


MODES = [
    {"mode": "streaming"},
    {"mode": "async"},
    {"mode": "async", "staleness": 3.0, "sync_every": 4, "in_flight": "keep"},
    {"mode": "async", "staleness": 2.0, "in_flight": "recompute"},
]


@pytest.mark.full
@pytest.mark.parametrize("changes", MODES)
def test_stages_make_up_the_iteration_and_each_pool_is_busy_or_idle(changes):
    found = forecast(apart(**changes))
    seconds = found.iteration_seconds
    assert sum(found.stage_seconds.values()) == pytest.approx(seconds)
    assert found.overlap is not None
    assert found.overlap.staleness_max <= changes.get(
        "staleness", 1.0 * ("async" in changes["mode"])
    )
    costs = {cost.name: cost.seconds for cost in found.costs}
    assert seconds >= costs["actor.update"] + costs["reference.compute_log_prob"]
    assert found.energy_joules > 0
    assert found.tokens_per_second * seconds == pytest.approx(32 * 4 * (16 + 198), rel=0.05)


@pytest.mark.full
@pytest.mark.parametrize("changes", MODES)
def test_no_training_pool_does_two_things_at_once(changes):
    spans = sorted(
        (span.start_seconds, span.end_seconds)
        for span in forecast(apart(**changes)).tasks
        if span.pool == "t" and span.activity == "task"
    )
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert start >= end - 1e-9


@pytest.mark.parametrize(
    "changes", [MODES[1], *(pytest.param(each, marks=pytest.mark.full) for each in MODES[2:])]
)
def test_a_brief_forecast_plays_less_and_its_interval_has_what_that_may_move(changes):
    plan = apart(**changes)
    whole, brief = (forecast(plan, brief=brief) for brief in (False, True))
    assert len(brief.iterations) < len(whole.iterations)
    moved = abs(brief.iteration_seconds / whole.iteration_seconds - 1)
    assert moved < 2 * BRIEF_EFFORT.spread_fraction
    (_, high), (_, brief_high) = (each.iteration_seconds_interval for each in (whole, brief))
    above, brief_above = high / whole.iteration_seconds, brief_high / brief.iteration_seconds
    assert brief_above > above
    assert brief_above - 1 >= 0.999 * P90_DEVIATIONS * BRIEF_EFFORT.spread_fraction


@pytest.mark.parametrize("plan", [priced_plan(), apart(mode="streaming")], ids=lambda p: p.mode)
def test_a_brief_forecast_of_what_is_played_whole_anyway_is_the_usual_one(plan):
    assert forecast(plan, brief=True) == forecast(plan)


@pytest.mark.full
def test_the_same_plan_gives_the_same_forecast():
    assert forecast(apart()) == forecast(apart())


@pytest.mark.full
def test_a_longer_trace_has_as_many_iterations_as_were_asked_for():
    assert len(forecast(apart(), iterations=20).iterations) >= 20


@pytest.mark.full
def test_a_longer_trace_shows_counted_iterations_again_and_moves_no_figure():
    short, long = forecast(apart()), forecast(apart(), iterations=80)
    # Iterations of 128 responses are counted behind two that fill the pools.
    warm_up, counted = 2, COUNTED_SEQUENCES // 128
    assert len(short.iterations) == warm_up + counted
    assert len(long.iterations) == warm_up + 80
    assert long.iteration_seconds == short.iteration_seconds
    assert long.iterations[: len(short.iterations)] == short.iterations
    assert [each.iteration for each in long.iterations] == list(range(warm_up + 80))
    for one, other in itertools.pairwise(long.iterations):
        assert other.start_seconds == pytest.approx(one.end_seconds)
    again, first = (long.iterations[at] for at in (4 + counted, 4))
    assert again.seconds == pytest.approx(first.seconds)
    spans = sorted(
        (s.start_seconds, s.end_seconds)
        for s in long.tasks
        if s.pool == "t" and s.activity == "task"
    )
    assert spans[-1][1] > long.iterations[-1].start_seconds
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert start >= end - 1e-9


# Lengths come in other orders under another bound: that moves an iteration by a per cent.
ROUNDING = 0.01


@pytest.mark.full
@pytest.mark.parametrize("in_flight", ["drain", "keep", "recompute"])
@pytest.mark.parametrize("running", [4, 64])
def test_a_larger_bound_is_never_slower_and_a_huge_one_is_played_as_a_moderate_one(
    running, in_flight
):
    """With few slots generation is slower than training: then no bound beyond them matters."""
    plan = apart()
    generate = replace(plan.tasks["actor.generate"], max_running=running)
    tasks = plan.tasks.with_item("actor.generate", generate)
    found = {
        bound: forecast(replace(plan, tasks=tasks, staleness=bound, in_flight=in_flight))
        for bound in (16, 17, 64, 512, 10**6)
    }
    rates = [each.tokens_per_second for each in found.values()]
    for smaller, larger in itertools.pairwise(rates):
        assert larger >= (1 - ROUNDING) * smaller
    assert rates[-1] == rates[-2] == rates[-3]
    assert len(found[10**6].iterations) == len(found[64].iterations) <= 64 + 8
    recomputed = {each.overlap.recomputed_fraction for bound, each in found.items() if bound >= 64}
    assert len(recomputed) == 1


@pytest.mark.full
def test_samples_get_as_old_as_the_bound_where_generation_is_faster_and_no_older_than_slots_where_it_is_slower():
    plan = apart(staleness=1000, in_flight="keep")
    roomy = replace(plan.tasks["actor.generate"], max_running=256)
    drained = replace(plan, in_flight="drain", tasks=plan.tasks.with_item("actor.generate", roomy))
    assert forecast(drained).overlap.staleness_max == 1000
    generate = replace(plan.tasks["actor.generate"], max_running=4)
    slow = forecast(replace(plan, tasks=plan.tasks.with_item("actor.generate", generate)))
    assert slow.overlap.staleness_max <= 2
    assert any("never reaches the bound of 1000" in warning for warning in slow.warnings)


def test_streaming_is_no_slower_than_whole_batches_one_after_another():
    """The same pools in mode sync cannot be: so one by one is what tasks cost, added up."""
    found = forecast(apart("streaming"))
    one_by_one = sum(cost.seconds for cost in found.costs if cost.activity != "transfer")
    assert found.iteration_seconds < one_by_one


@pytest.mark.full
def test_asynchronous_iterations_approach_the_slower_side():
    found = forecast(apart(staleness=8.0, in_flight="keep"))
    costs = {cost.name: cost.seconds for cost in found.costs}
    sides = max(
        costs["actor.generate"], costs["actor.update"] + costs["reference.compute_log_prob"]
    )
    assert found.iteration_seconds <= 1.1 * sides + costs["transition"]
    one_off = forecast(apart("one-step-off"))
    assert found.iteration_seconds <= 1.02 * one_off.iteration_seconds


@pytest.mark.full
def test_what_takes_long_is_waited_for_only_where_ages_are_bounded(monkeypatch):
    """One response in 128 takes as long as several iterations: nobody waits for it who takes what has ended."""
    lengths = Lognormal(mean=100, std=50, max=8000, at_max=1 / 128)
    plan = apart(staleness=0.5, in_flight="keep")
    plan = replace(
        plan, job=replace(plan.job, workload=replace(plan.job.workload, response_tokens=lengths))
    )
    facts = load_facts(plan.job)
    bounded, sheet = simulate(plan, facts), facts.framework(plan.job.framework)
    others = load_facts(plan.job)
    monkeypatch.setattr(others, "framework", lambda _: replace(sheet, bounds_ages=False))
    free = simulate(plan, others)
    assert free.iteration_seconds < 0.8 * bounded.iteration_seconds
    assert free.overlap.staleness_max > 1 >= bounded.overlap.staleness_max
    assert free.overlap.dropped_fraction == 0


def test_engines_that_take_waves_are_played_too():
    plan = apart()
    tasks = dict(plan.tasks)
    tasks["actor.generate"] = replace(tasks["actor.generate"], engine="megatron-static")
    assert forecast(replace(plan, tasks=FrozenDict(tasks))).iteration_seconds > 0


def test_what_prepares_ahead_takes_shares_as_the_executor_does():
    plan = apart()
    placed = PlacedPlan(plan, load_facts(plan.job))
    found = {
        each.entry.work.name: (each.share, each.fixed)
        for each in stream_of(placed, agenda_of(placed)).works
        if not each.together
    }
    reference = plan.tasks["reference.compute_log_prob"]
    batch = plan.job.workload.prompts  # GRPO's 32 groups of 4 samples
    assert found == {
        "transfer:sequences": (4 * batch, False),
        "transfer:log_probs": (4 * batch, False),
        "transfer:rule_scores": (4 * batch, False),
        "reference.compute_log_prob": (2 * 4 * -(-reference.micro_batch // 4), False),
        "rule.compute_reward": (0, False),
    }


def test_a_whole_batch_in_whole_shares_costs_what_the_task_does():
    plan = apart()
    small = replace(plan.tasks["reference.compute_log_prob"], micro_batch=16)
    plan = replace(plan, tasks=plan.tasks | {"reference.compute_log_prob": small})
    placed = PlacedPlan(plan, load_facts(plan.job))
    agenda = agenda_of(placed)
    (work,) = (
        each
        for each in stream_of(placed, agenda).works
        if each.entry.work.name == "reference.compute_log_prob"
    )
    passes = plan.job.workload.sequences / work.share
    assert work.pass_seconds > 0
    whole = work.sample_seconds + passes * work.pass_seconds + work.call_seconds
    assert whole == pytest.approx(work.entry.cost.total.seconds)


def test_updates_take_what_they_cost_however_their_samples_come():
    """Micro-batches of updates are whole ones, with all that a pass takes beside its samples."""
    plan = apart(mode="async")
    update = replace(plan.tasks["actor.update"], micro_batch=16)
    plan = replace(plan, tasks=FrozenDict({**plan.tasks, "actor.update": update}))
    placed = PlacedPlan(plan, load_facts(plan.job))
    (work,) = (each for each in stream_of(placed, agenda_of(placed)).works if each.learns)
    whole = work.sample_seconds + work.step_seconds + work.call_seconds
    assert whole == pytest.approx(work.entry.cost.total.seconds)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["one-step-off", "streaming", "async"])
def test_the_longest_responses_are_dropped_where_more_is_begun(mode):
    """A warning says so, and training learns from fewer tokens in less time."""
    whole, more = forecast(apart(mode)), forecast(apart(mode, over=1.5))
    assert any("over_provisioning 1.5" in warning for warning in more.warnings)
    tokens = [each.tokens_per_second * each.iteration_seconds for each in (whole, more)]
    assert tokens[1] < 0.95 * tokens[0]
    if mode != "one-step-off":
        assert more.overlap.dropped_fraction > 0.1


@pytest.mark.full
def test_generation_ends_sooner_with_a_tail_that_nobody_waits_for():
    costs = [
        {cost.name: cost.seconds for cost in forecast(apart("one-step-off", over=over)).costs}
        for over in (1.0, 1.25)
    ]
    assert costs[1]["actor.generate"] < costs[0]["actor.generate"]
    assert costs[1]["actor.update"] < costs[0]["actor.update"]


def test_a_search_refuses_what_nothing_plays():
    from rlplan.planner.search import search

    job = apart(over=1.25).job
    tool = Environment(name="tool", turns=2, observation_tokens=10, step_seconds=1.0)
    job = replace(job, workload=replace(job.workload, environments=(tool,)))
    with pytest.raises(FileError, match="over_provisioning: is not simulated"):
        search(job, load_facts(job))


class Sent:
    """Take the place of a pool's workers, and keep the call that is sent to one of them."""

    present = range(64)

    def send(self, _, arguments, num_returns):
        (self.call, *_prompts) = next(iter(arguments.values()))
        return {rank: [None] * num_returns for rank in arguments}


@pytest.mark.parametrize(
    ("mode", "over", "micro_batch"),
    [("streaming", 1.0, 8), ("streaming", 1.0, 4), ("streaming", 1.25, 8), ("async", 1.0, 8)],
)
def test_static_waves_go_on_in_calls_that_are_those_of_the_executor(mode, over, micro_batch):
    plan = apart(mode, over=over)
    generate = replace(plan.tasks["actor.generate"], engine="torch-static")
    prepare = replace(plan.tasks["reference.compute_log_prob"], micro_batch=micro_batch)
    layouts = {"actor.generate": generate, "reference.compute_log_prob": prepare}
    plan = replace(plan, tasks=plan.tasks | layouts)
    placed = PlacedPlan(plan, load_facts(plan.job))
    played = stream_of(placed, agenda_of(placed))
    tasks = tasks_of(load_algorithm("grpo"), plan.job)
    workers: Any = Sent()
    parts = handed_over_parts(plan, tasks)
    rollouts = Rollouts(plan, tasks[0], workers, lambda _: None, parts)
    rollouts.replicas[0].queued = [0]
    rollouts.send(rollouts.replicas[0], 0)
    call, found = workers.call, played.calls
    assert (found.look_tokens, found.looks, found.enough) == (call.steps, call.looks, call.ends)
    assert found.joins == (mode == "async")
    assert math.isinf(played.slots) == (mode == "streaming" and over == 1)
