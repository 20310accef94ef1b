"""Generation in episodes: turns between steps of environments that wait for host cores."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.profiles.facts import load_facts
from rlplan.simulator.environments import HostQueue, HostShare, InstanceSlots
from rlplan.simulator.generation.episodes import (
    CacheLoad,
    Episode,
    EpisodeShare,
    HostCache,
    Turn,
    generate_episodes,
)
from rlplan.simulator.generation.playing import generate
from rlplan.simulator.generation.replica import Replica
from rlplan.simulator.simulate import simulate
from rlplan.workload import Environment, Lognormal
from tests.cases import draws
from tests.simulator.golden.plans import PLANS


def flat(batching="mixed", **changes):
    """Return a replica whose prefill takes 1 s a prompt token and whose decode step takes 1 s."""
    fields = {
        "batching": batching,
        "max_running": 8,
        "kv_blocks": 1000,
        "block_tokens": 1,
        "max_batched_tokens": 1000,
        "chunked_prefill": True,
        "prefill_seconds": lambda sequences, tokens: sequences * tokens,
        "decode_seconds": lambda *_: 1.0,
        "mixed_seconds": lambda running, _, chunks: (
            (1.0 if running else 0.0) + chunks.parts * chunks.tokens
        ),
    }
    return Replica(**(fields | changes))


def host(cores=math.inf, workers=math.inf, **fields):
    """Return a share of the host with one environment, whose steps hold a core each."""
    usual = {"slowdown": 1.0, "instances": math.inf, "sharing": 1.0, "limit_seconds": math.inf}
    return HostShare(
        cores=cores, seats=(InstanceSlots(cores=1, workers=workers, **(usual | fields)),)
    )


def episode(*turns, prompt=0, tokens=10, reset=0.0):
    return Episode(prompt, tokens, 0, reset, tuple(Turn(*turn) for turn in turns))


def play(replica, *episodes, on=None):
    return generate_episodes(replica, EpisodeShare(episodes, on or host()))


workloads = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 25)), min_size=1, max_size=10)


@pytest.mark.parametrize("batching", ["mixed", "continuous"])
@pytest.mark.parametrize("reserves", [False, True])
@settings(max_examples=draws(20, 100))
@given(workloads, st.integers(1, 6), st.integers(1, 60), st.integers(1, 5))
def test_episodes_of_one_turn_that_nothing_follows_are_plain_generation(
    batching, reserves, workload, running, blocks, block
):
    one = flat(batching, max_running=running, kv_blocks=blocks, block_tokens=block)
    one = dataclasses.replace(one, reserves_whole=reserves)
    plain = generate(one, *zip(*workload, strict=True))
    found = play(
        one, *(episode((response, 0.0, 0), tokens=prompt) for prompt, response in workload)
    )
    assert found.seconds == pytest.approx(plain.seconds)
    assert found.finish_seconds == pytest.approx(plain.finish_seconds)
    assert found.idle_seconds == pytest.approx(0.0)


@pytest.mark.parametrize("prompts", [8, 63, 128])
def test_an_environment_of_one_turn_that_takes_no_time_changes_no_forecast(prompts):
    plan = PLANS["grpo 7b, long answers on 8 h100"]()
    lengths = Lognormal(mean=900, std=900, max=8192)
    work = dataclasses.replace(
        plan.job.workload,
        prompts=prompts,
        samples_per_prompt=8,
        updates=1,
        response_tokens=lengths,
    )
    nothing = Environment(name="nothing", turns=1, step_seconds=0.0, cpu_cores=0.0)
    played = dataclasses.replace(work, environments=(nothing,))
    seconds = [
        simulate(
            dataclasses.replace(plan, job=dataclasses.replace(plan.job, workload=each)),
            load_facts(plan.job),
        ).stage_seconds["generation"]
        for each in (work, played)
    ]
    assert seconds[1] == pytest.approx(seconds[0], rel=1e-6)


def test_an_episode_alone_is_its_turns_and_steps_one_after_the_other():
    one = [episode((5, 7.0, 3), (2, 1.0, 0), reset=4.0)]
    kept = play(flat(keeps_prefixes=True), *one)
    # A reset of 4 s; 10 prompt tokens and 4 steps; 7 s; the last token and 3 more are prefilled, 1 step; 1 s.
    assert kept.seconds == 4 + 10 + 4 + 7 + 4 + 1 + 1
    assert kept.idle_seconds == 4 + 7 + 1
    # Without a prefix cache all 18 tokens are prefilled again.
    assert play(flat(), *one).seconds == 4 + 10 + 4 + 7 + 18 + 1 + 1
    assert play(flat("continuous"), *one).seconds == 4 + 10 + 4 + 7 + 18 + 1 + 1


def test_a_slot_is_free_while_the_environment_steps():
    one = flat(max_running=1, keeps_prefixes=True)
    pair = [episode((5, 100.0, 1), (5, 0.0, 0)), episode((5, 0.0, 0), prompt=1)]
    found = play(one, *pair)
    assert found.finish_seconds == (14 + 100 + 2 + 4, 14 + 14)


def test_blocks_of_waiting_episodes_go_to_those_that_run():
    pair = [episode((5, 100.0, 1), (5, 0.0, 0)), episode((20, 0.0, 0), prompt=1)]
    roomy = play(flat(keeps_prefixes=True, max_running=1), *pair)
    tight = play(flat(keeps_prefixes=True, max_running=1, kv_blocks=30), *pair)
    # The first one's 14 tokens do not stay beside 29 others: 16 tokens are prefilled for 2.
    assert tight.seconds == roomy.seconds + 14


def off_loading(**changes):
    """Return a replica whose cache gives a waiting episode up, with host memory for as much as there is."""
    usual = {"keeps_prefixes": True, "max_running": 1, "kv_blocks": 30, "host_blocks": 100}
    return flat(**(usual | changes))


PUSHED_OUT = [episode((5, 100.0, 1), (5, 0.0, 0)), episode((20, 0.0, 0), prompt=1)]


def test_what_the_gpus_gave_up_is_read_from_host_memory():
    # 10 prompt tokens and 4 steps until 14; the tool until 114. The other episode has 29 tokens by 14 + 10 + 19 = 43,
    # beside which the first one's 14 do not stay. A quarter of a second a block: they are there at 117.5, and the
    # last token and an observation are prefilled until 119.5, 4 steps until 123.5.
    found = play(off_loading(host_block_seconds=0.25), *PUSHED_OUT)
    assert found.finish_seconds == (123.5, 43.0)
    assert found.idle_seconds == 117.5 - 43
    # Computed again, the same takes 16 s of prefill in place of 3.5 s and 2.
    assert play(off_loading(host_blocks=0), *PUSHED_OUT).finish_seconds == (134.0, 43.0)
    # Host memory that holds 13 tokens holds none of an episode of 14.
    assert play(off_loading(host_blocks=13), *PUSHED_OUT).finish_seconds == (134.0, 43.0)
    # A slow link: engines read what is there, though computing it would be faster.
    slow = play(off_loading(host_block_seconds=2.0), *PUSHED_OUT)
    assert slow.finish_seconds == (114 + 28 + 2 + 4, 43.0)


def test_what_is_read_has_to_stay_in_host_memory_until_a_slot_is_free():
    # The other episode has the slot until 14 + 10 + 199 = 223; then the cache of 215 has no room for the first one's 14
    # tokens beside its 209. What the host holds of both is read while it runs: 2 tokens are left to compute.
    pair = [PUSHED_OUT[0], episode((200, 0.0, 0), prompt=1)]
    both = {"kv_blocks": 215, "host_block_seconds": 0.25}
    assert play(off_loading(**both, host_blocks=223), *pair).finish_seconds == (223 + 2 + 4, 223)
    # Where it holds either, the other's end pushes the first one out: its 16 tokens are computed.
    assert play(off_loading(**both, host_blocks=222), *pair).finish_seconds == (223 + 16 + 4, 223)


def test_one_load_follows_another_and_what_was_written_longest_ago_goes():
    queue = HostCache(off_loading(host_blocks=25, host_block_seconds=1.0))
    for number in range(3):
        queue.write(number, 10, 10)
    assert list(queue.kept) == [1, 2]  # 30 blocks are more than 25
    assert queue.read(0, 1, 5.0) is None
    assert queue.read(1, 1, 5.0) == CacheLoad(1, 1, 10, 15.0)
    assert queue.read(2, 1, 7.0) == CacheLoad(2, 1, 10, 25.0)  # behind the other
    assert queue.read(2, 1, 40.0) == CacheLoad(2, 1, 10, 50.0)
    queue.write(1, 26, 26)  # more than there is
    assert (list(queue.kept), queue.used) == ([2], 10)


@settings(max_examples=draws(30, 200))
@given(
    st.lists(
        st.tuples(
            st.integers(1, 20),
            st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 4),
    st.integers(20, 120),
    st.integers(0, 80),
)  # fmt: skip
def test_host_memory_changes_nothing_where_it_holds_nothing_and_computes_no_more(
    drawn, running, blocks, held
):
    every = [
        episode(*turns[:-1], (*turns[-1][:2], 0), prompt=number, tokens=tokens)
        for number, (tokens, turns) in enumerate(drawn)
    ]
    limits = {"max_running": running, "kv_blocks": blocks}
    without = play(off_loading(**limits, host_blocks=0, host_block_seconds=9.0), *every)
    found = play(off_loading(**limits, host_blocks=held), *every)
    if not held:
        assert found == without
    assert len(found.finish_seconds) == len(every)
    # With room for all of them nothing is ever computed twice but what was thrown out while it ran.
    roomy = play(off_loading(**limits, host_blocks=10**6), *every)
    least = sum(tokens for tokens, _ in drawn) + sum(
        1 + turns[place - 1][2] for _, turns in drawn for place in range(1, len(turns))
    )
    if not roomy.num_preemptions:
        assert roomy.prefill_seconds == pytest.approx(least)
        assert roomy.prefill_seconds <= without.prefill_seconds * (1 + 1e-9)


def test_steps_wait_for_workers_in_the_order_of_asking():
    each = [episode((1, 10.0, 0), tokens=1, prompt=number) for number in range(4)]
    ends = {
        workers: play(flat(), *each, on=host(workers=workers)).finish_seconds
        for workers in (1, 2, 4)
    }
    assert ends[4] == (14.0, 14.0, 14.0, 14.0)
    assert ends[2] == (14.0, 14.0, 24.0, 24.0)
    assert ends[1] == (14.0, 24.0, 34.0, 44.0)


def test_instances_begin_when_others_have_ended():
    each = [episode((1, 10.0, 0), tokens=1, prompt=number, reset=2.0) for number in range(3)]
    found = play(flat(), *each, on=host(instances=1))
    assert found.finish_seconds == (13.0, 26.0, 39.0)


def test_episodes_of_one_environment_wait_for_no_instance_of_another():
    seats = tuple(
        InstanceSlots(
            cores=1, workers=math.inf, slowdown=1, instances=most, sharing=1, limit_seconds=math.inf
        )
        for most in (1, 2)
    )
    each = [
        Episode(number, 1, kind, 0.0, (Turn(1, 10.0, 0),)) for number, kind in enumerate((0, 0, 1))
    ]
    # Prompts of one token each: two of them at first, then the one that waited.
    found = play(flat(), *each, on=HostShare(cores=math.inf, seats=seats))
    assert found.finish_seconds == (12.0, 23.0, 12.0)
    lockstep = play(flat("static"), *each, on=HostShare(cores=math.inf, seats=seats))
    assert lockstep.finish_seconds[0] == lockstep.finish_seconds[2]
    assert lockstep.finish_seconds[1] > lockstep.finish_seconds[0] + 10


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("batching", ["mixed", "continuous", "static"])
def test_an_instance_that_replicas_share_comes_back_when_each_has_had_it(batching, inline):
    each = [episode((1, 10.0, 0), tokens=1, prompt=number, reset=2.0) for number in range(3)]
    found, alone = (
        generate_episodes(
            flat(batching), EpisodeShare(tuple(each), host(instances=1, sharing=sharing), inline)
        )
        for sharing in (4.0, 1.0)
    )
    assert found.seconds == pytest.approx(4 * alone.seconds)
    assert found.finish_seconds == pytest.approx([4 * end for end in alone.finish_seconds])


def test_an_episode_that_is_late_gets_no_further_turn():
    one = episode((5, 100.0, 1), (5, 0.0, 1), (5, 0.0, 0))
    assert play(flat(), one, on=host(limit_seconds=50)).seconds == 114


@pytest.mark.parametrize("batching", ["static", "calls", "none"])
def test_engines_that_wait_for_a_batch_go_in_lockstep(batching):
    each = [episode((5, 10.0, 1), (2, 3.0, 0)), episode((3, 1.0, 0), prompt=1)]
    found = play(flat(batching), *each)
    first = generate(flat(batching), [10, 10], [5, 3]).seconds
    second = generate(flat(batching), [16], [2]).seconds
    assert found.seconds == pytest.approx(first + 10 + second + 3)
    assert found.idle_seconds == pytest.approx(13)
    assert found.finish_seconds == pytest.approx((found.seconds, first + 1))


calls = st.lists(
    st.tuples(st.floats(0, 50), st.integers(0, 1), st.floats(0, 20)), min_size=1, max_size=30
)


@settings(max_examples=draws(50, 200))
@given(calls, st.integers(2, 6), st.integers(1, 4))
def test_the_host_runs_every_step_once_and_never_more_than_it_has(asked, cores, workers):
    seats = [
        InstanceSlots(
            cores=held,
            workers=limit,
            slowdown=1,
            instances=math.inf,
            sharing=1,
            limit_seconds=math.inf,
        )
        for held, limit in ((1, math.inf), (2, workers))
    ]
    queue = HostQueue(HostShare(cores=cores, seats=tuple(seats)))
    spans = []

    def end_until(time):
        while queue.running and queue.next_end <= time:
            end, call = queue.end_next()
            spans.append((end - call.seconds, end, call))

    for number, (time, environment, seconds) in enumerate(sorted(asked)):
        end_until(time)
        queue.ask(time, environment, seconds, number, 0)
    end_until(math.inf)
    assert sorted(call.episode for *_, call in spans) == list(range(len(asked)))
    for moment, _, call in spans:
        assert moment >= call.asked_seconds - 1e-9
        at = moment + 1e-6
        running = [each.environment for begin, end, each in spans if begin <= at < end]
        assert sum(1 + kind for kind in running) <= cores
        assert running.count(1) <= workers
