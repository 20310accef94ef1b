"""Episodes where responses go on one by one: laws of streams, and plain responses as episodes of one turn."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.facts import load_facts
from rlplan.environment import Environment
from rlplan.errors import FileError
from rlplan.latencies import LognormalSeconds
from rlplan.lengths import Uniform
from rlplan.plan import ResourcePool
from simulator.asynchronous.playing import play_stream
from simulator.environments.host import HostShare, Seats
from simulator.simulate import simulate
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
    fields = {"cores": 1, "workers": math.inf, "slowdown": 1.0, "instances": math.inf}
    return Seats(**(fields | {"limit_seconds": math.inf} | changes))


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
    return episodes(
        TOOL,
        cores=draw(st.sampled_from([1.0, 4.0, math.inf])),
        engine=draw(
            st.sampled_from([replica(), mixed(), mixed(keeps_prefixes=True, kv_blocks=12)])
        ),
        learning=draw(st.sampled_from([0.05, 2.0])),
        replicas=draw(st.integers(1, 2)),
        staleness=staleness,
        sync_every=every,
        in_flight=draw(st.sampled_from(["drain", "keep", "recompute"])),
        warm_up=2,
        counted=4,
    )


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


def test_asynchronous_plans_with_environments_are_forecast_faster_than_synchronous_ones():
    sync, ahead = plan_of("sync", 0), plan_of("async", 4)
    seconds = [simulate(plan, load_facts(plan.job)).iteration_seconds for plan in (sync, ahead)]
    assert seconds[1] < seconds[0]


def test_what_has_no_asynchronous_playing_is_refused_by_name():
    for plan, field in (
        (plan_of("async", 1, engine="torch-static"), "tasks.actor.generate.engine"),
        (plan_of("async", 1, inference="inline"), "inference"),
    ):
        with pytest.raises(FileError, match=field):
            simulate(plan, load_facts(plan.job))
