"""Episodes where responses go on one by one: laws of streams, and plain responses as episodes of one turn."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.errors import MissingFactError
from rlplan.plan import ResourcePool
from rlplan.profiles.facts import load_facts
from rlplan.simulator.asynchronous.playing import play_stream
from rlplan.simulator.environments import HostShare, InstanceSlots, host_share
from rlplan.simulator.generation.batching.joining import Calls, JoiningSet
from rlplan.simulator.generation.episodes import Episode, EpisodeWaves, Turn
from rlplan.simulator.simulate import simulate
from rlplan.workload import Environment, LognormalSeconds, Uniform
from tests.cases import draws
from tests.simulator.plans import priced_plan
from tests.simulator.streams import decode_seconds, mean_seconds, replica, stream, workload

ONE_TURN = Environment(name="none", step_seconds=0.0)
TOOL = Environment(
    name="tool",
    turns=Uniform(low=1, high=3),
    observation_tokens=4,
    step_seconds=LognormalSeconds(mean=0.3, std=0.5, max=3.0),
    reset_seconds=0.1,
)


def seats(**changes):
    fields = {
        "cores": 1,
        "workers": math.inf,
        "slowdown": 1.0,
        "instances": math.inf,
        "sharing": 1.0,
    }
    return InstanceSlots(**(fields | {"limit_seconds": math.inf} | changes))


def episodes(*environments, cores=math.inf, engine=None, prompts=8, **changes):
    """Return a stream whose responses are episodes."""
    work = workload(prompts=prompts, environments=environments)
    host = HostShare(cores=cores, seats=tuple(seats() for _ in environments))
    return replace(stream(work, engine=engine or replica(), **changes), host=host)


def mixed(**changes):
    return replica(
        batching="mixed",
        chunked_prefill=True,
        max_batched_tokens=32,
        mixed_seconds=lambda running, cached, chunks: (
            0.01 + 0.0002 * chunks.parts * chunks.tokens + decode_seconds(running, cached)
        ),
        **changes,
    )


@st.composite
def streams(draw):
    staleness, every = draw(st.sampled_from([(0.0, 1), (1.0, 1), (1.0, 2), (3.5, 2)]))
    calls = draw(st.sampled_from([None, looks(), looks(call_seconds=0.01)]))
    made = episodes(
        replace(TOOL, inference=draw(st.sampled_from(["remote", "remote", "inline"]))),
        cores=draw(st.sampled_from([1.0, 4.0, math.inf])),
        engine=draw(
            st.sampled_from([replica(), mixed(), mixed(keeps_prefixes=True, kv_blocks=12)])
            if calls is None
            else st.just(static())
        ),
        calls=calls,
        learning=draw(st.sampled_from([0.05, 2.0])),
        replicas=draw(st.integers(1, 2)),
        staleness=staleness,
        sync_every=every,
        in_flight=draw(st.sampled_from(["drain", "keep", "recompute"])),
        warm_up=2,
        counted=4,
    )
    return replace(made, in_step=calls is not None and not staleness and draw(st.booleans()))


@pytest.mark.full
@given(streams())
@settings(max_examples=draws(30, 150))
def test_every_episode_is_learnt_from_once_and_in_time(made):
    streamed = play_stream(made)
    ages, setting = Counter(streamed.counts[-1].ages), made.setting
    assert max(ages) <= math.ceil(setting.staleness)
    assert sum(ages.values()) == setting.learnt * setting.iterations
    assert play_stream(made) == streamed


@pytest.mark.parametrize("in_flight", ["drain", "keep", "recompute"])
@pytest.mark.parametrize("engine", [replica(), mixed(), mixed(keeps_prefixes=True)])
def test_episodes_of_one_turn_that_nothing_follows_are_plain_responses(engine, in_flight):
    fields = {"learning": 0.4, "staleness": 2.0, "in_flight": in_flight, "engine": engine}
    plain, found = stream(workload(prompts=8), **fields), episodes(ONE_TURN, **fields)
    ends = [each.end_seconds for each in play_stream(found).iterations]
    assert ends == pytest.approx([each.end_seconds for each in play_stream(plain).iterations])


def test_generation_beside_training_hides_tools():
    slow = replace(TOOL, step_seconds=2.0)
    waits = mean_seconds(episodes(slow, staleness=0.0, counted=8))
    hidden = mean_seconds(episodes(slow, staleness=4.0, warm_up=8, counted=8))
    assert hidden < 0.6 * waits


def plan_of(mode, staleness, engine="vllm", **changes):
    """Return the small plan with the copy that generates on a pool of its own."""
    plan = priced_plan()
    pools = (
        *plan.pools,
        ResourcePool(name="p2", device="a100-80gb-sxm", gpus=2, roles=("actor",)),
    )
    generate = replace(plan.tasks["actor.generate"], pool="p2", engine=engine)
    work = replace(plan.job.workload, prompts=32, environments=(replace(TOOL, **changes),))
    cluster = (replace(plan.job.cluster[0], gpus_per_node=8, cpu_cores=64),)
    return replace(
        plan,
        job=replace(plan.job, workload=work, cluster=cluster),
        pools=pools,
        tasks=plan.tasks.with_item("actor.generate", generate),
        order=plan.order.with_item("p0", plan.order["p0"][1:]).with_item("p2", ("actor.generate",)),
        mode=mode,
        staleness=staleness,
        transition="two-copies",
    )


@pytest.mark.full
def test_asynchronous_plans_with_environments_are_forecast_faster_than_synchronous_ones():
    sync, ahead = plan_of("sync", 0), plan_of("async", 4)
    seconds = [simulate(plan, load_facts(plan.job)).iteration_seconds for plan in (sync, ahead)]
    assert seconds[1] < seconds[0]


@pytest.mark.full
@pytest.mark.parametrize("inference", ["remote", "inline"])
def test_the_projects_own_engine_streams_as_fast_as_it_runs_synchronously(inference):
    """Where all tools take as long and one replica plays, so that no chance is in it."""
    fields = {"engine": "torch-static", "inference": inference, "step_seconds": 0.3, "turns": 2}
    plans = [
        on_one_replica(plan_of(mode, staleness, **fields))
        for mode, staleness in (("sync", 0), ("streaming", 0), ("async", 2))
    ]
    sync, streaming, ahead = (simulate(each, load_facts(each.job)) for each in plans)
    assert streaming.iteration_seconds == pytest.approx(sync.iteration_seconds, rel=0.01)
    assert ahead.iteration_seconds < sync.iteration_seconds


@pytest.mark.full
@pytest.mark.parametrize("inference", ["remote", "inline"])
@pytest.mark.parametrize("engine", ["vllm", "torch-static"])
@pytest.mark.parametrize("instances", [1, 3, 4])
def test_no_mode_has_more_episodes_under_way_than_instances(instances, engine, inference):
    """With two replicas: one instance for both, and one or two for each."""
    fields = {"step_seconds": 2.0, "turns": 1, "reset_seconds": 0.0, "instances": instances}
    for mode, staleness in (("sync", 0), ("streaming", 0), ("async", 0.5), ("async", 2)):
        plan = plan_of(mode, staleness, engine, inference=inference, **fields)
        plan = replace(
            plan,
            tasks=plan.tasks.with_item(
                "actor.generate", replace(plan.tasks["actor.generate"], dp=2, tp=1)
            ),
        )
        floor_seconds = plan.job.workload.sequences * 2.0 / instances
        found = simulate(plan, load_facts(plan.job))
        assert found.iteration_seconds > (0.999 if mode == "async" else 1) * floor_seconds, mode


def test_a_part_of_an_instance_is_none():
    """Three of two replicas are one each; one of two goes to each of them in turn."""
    job = plan_of("sync", 0, instances=3, workers=1).job
    (found,) = host_share(job, 2).seats
    assert (found.instances, found.sharing, found.slowdown) == (1, 1, 2)
    job = plan_of("sync", 0, instances=1, workers=1).job
    (found,) = host_share(job, 2).seats
    assert (found.instances, found.sharing, found.slowdown) == (1, 2, 1)


def test_cores_that_nobody_says_are_asked_for():
    job = plan_of("sync", 0).job
    cluster = tuple(replace(group, cpu_cores=None) for group in job.cluster)
    holding = replace(job.environments[0], cpu_cores=1.0)
    work = replace(job.workload, environments=(holding,))
    with pytest.raises(MissingFactError, match="set cpu_cores"):
        host_share(replace(job, cluster=cluster, workload=work), 2)


def on_one_replica(plan):
    pools = tuple(replace(each, gpus=1) if each.name == "p2" else each for each in plan.pools)
    generate = replace(plan.tasks["actor.generate"], dp=1, tp=1)
    return replace(plan, pools=pools, tasks=plan.tasks.with_item("actor.generate", generate))


def test_inline_episodes_take_as_long_as_all_of_them_one_after_another():
    alone = replace(TOOL, inference="inline", turns=2, step_seconds=0.5, reset_seconds=0.25)
    made = episodes(alone, staleness=0.0, replicas=1, learning=0.01, syncing=0.0, counted=1)
    outside = 8 * (0.25 + 2 * 0.5)
    seconds = mean_seconds(made)
    together = mean_seconds(
        replace(
            made, workload=workload(prompts=8, environments=(replace(alone, inference="remote"),))
        )
    )
    assert seconds > outside
    assert together < 0.5 * seconds


def static(**changes):
    return replica(batching="static", block_tokens=1, **changes)


def looks(**changes):
    return Calls(**({"look_tokens": 4, "looks": 1, "enough": 1, "call_seconds": 0.001} | changes))


@pytest.mark.parametrize("in_flight", ["drain", "keep", "recompute"])
@pytest.mark.parametrize("engine", [static(), static(prompt_samples=2)])
def test_turns_that_join_others_are_plain_responses_where_nothing_follows_them(engine, in_flight):
    fields = {
        "learning": 0.4, "staleness": 2.0, "in_flight": in_flight, "engine": engine,
        "calls": looks(),
    }  # fmt: skip
    plain, found = stream(workload(prompts=8), **fields), episodes(ONE_TURN, **fields)
    ends = [each.end_seconds for each in play_stream(found).iterations]
    assert ends == pytest.approx([each.end_seconds for each in play_stream(plain).iterations])


def test_tools_hold_up_a_batch_in_step_and_their_own_episodes_where_turns_join():
    """Two episodes of two turns, one of a slow tool: in step the fast one's second turn waits for it."""
    ends = {}
    for in_step in (True, False):
        calls = looks(look_tokens=100, call_seconds=0.0, joins=not in_step)
        turns = JoiningSet(static(decode_seconds=lambda *_: 0.01), 64, calls)
        host = HostShare(cores=math.inf, seats=(seats(),))
        waves = EpisodeWaves(turns, host, together=math.inf, in_step=in_step)
        for seconds in (0.1, 5.0):
            plan = (Turn(11, seconds, 2), Turn(11, 0.0, 0))
            waves.begin(Episode(0, 10, 0, 0.0, plan), 0.0)
        ends[in_step] = played_alone(waves)
    first = 0.005 + 0.0002 * 2 * 10 + 10 * 0.01
    again = 0.005 + 0.0002 * 23 + 10 * 0.01
    both = 0.005 + 0.0002 * 2 * 23 + 10 * 0.01
    assert ends[True] == pytest.approx([first + 5 + both] * 2)
    assert ends[False] == pytest.approx([first + 0.1 + again, first + 5 + again])


def played_alone(waves):
    """Return when each episode ends."""
    now, ends = 0.0, {}
    while True:
        waves.catch_up(now)
        ends |= dict(waves.over)
        waves.over.clear()
        if waves.busy:
            before = waves.prefill + waves.decode
            waves.turn_at(now)
            now += waves.prefill + waves.decode - before
            waves.follow_up(now)
        elif waves.next_return < math.inf:
            now = max(now, waves.next_return)
        else:
            return [ends[number] for number in sorted(ends)]


@pytest.mark.parametrize("joins", [True, False])
def test_an_episode_that_is_given_up_leaves_the_others_as_they_are(joins):
    """Wherever it is: in line, in its environment, ready, or in a wave."""
    for moments in range(6):
        turns = JoiningSet(static(), 64, looks(joins=joins))
        host = HostShare(cores=math.inf, seats=(seats(),))
        waves = EpisodeWaves(turns, host, together=2, in_step=not joins)
        plan = (Turn(9, 0.1, 2), Turn(3, 0.0, 0))
        for number in range(4):
            waves.begin(Episode(number, 10, 0, 0.05, plan), 0.0)
        now = 0.0
        for _ in range(moments):
            waves.catch_up(now)
            if waves.busy:
                waves.turn_at(now)
                now = max(now, waves.prefill + waves.decode)
                waves.follow_up(now)
            else:
                now = max(now, waves.next_return)
        if waves.over:
            continue
        made = [waves.abandon(number) for number in (0, 3)]
        assert made[1] == 0
        assert 0 <= made[0] <= 9
        assert len(played_alone(waves)) == 2
