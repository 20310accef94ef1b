"""GPUs that work for the other side: no sample is lost, and lending shortens what waits for the side that is short."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.simulator.asynchronous.generators import Generators
from rlplan.simulator.asynchronous.lending import LentGenerators, LentTrainers
from rlplan.simulator.asynchronous.playing import long_run, play_stream
from rlplan.simulator.timeline.engine import Work
from tests.simulator.streams import decode_seconds, mean_seconds, replica, stream, workload

LENT = Work(key="actor.generate lent", name="actor.generate", pool="t", holds=("t",))


def trainers(count=2, *, until=0.5, adapts=False, join=0.2, leave=0.1, engine=None):
    return LentTrainers(
        replica=engine or replica(), count=count, work=LENT, join_seconds=join,
        leave_seconds=leave, until=until, adapts=adapts,
    )  # fmt: skip


def generators(*, update=0.01, join=0.05, leave=0.05):
    return LentGenerators(
        ranks=2, replica_gpus=1.0, rank_gpus=1, ranks_each=1, pool="t", update_seconds=update,
        join_seconds=join, leave_seconds=leave,
    )  # fmt: skip


def lends(made, to_generation=None, to_training=None):
    return replace(made, lent_trainers=to_generation, lent_generators=to_training)


def lends_both_ways(draw, made, engine):
    to_generation = trainers(
        draw(st.integers(1, 3)), until=draw(st.sampled_from([0.1, 0.5, 1.0])),
        adapts=draw(st.booleans()), join=draw(st.sampled_from([0.0, 0.3])), engine=engine,
    )  # fmt: skip
    return lends(made, to_generation, generators() if draw(st.booleans()) else None)


@st.composite
def lending_streams(draw):
    staleness, every = draw(st.sampled_from([(0.0, 1), (1.0, 1), (1.0, 2), (3.5, 2), (5.0, 4)]))
    batching = draw(st.sampled_from(["continuous", "mixed"]))
    engine = replica(
        batching=batching, chunked_prefill=batching == "mixed", max_batched_tokens=32,
        max_running=draw(st.integers(2, 8)), kv_blocks=draw(st.sampled_from([6, 40])), block_tokens=8,
        mixed_seconds=lambda running, cached, chunks: (
            decode_seconds(running, cached) + 0.001 * chunks.tokens
        ),
    )  # fmt: skip
    made = stream(
        workload(prompts=8, samples=draw(st.sampled_from([1, 4]))), engine=engine,
        learning=draw(st.sampled_from([0.05, 1.0, 4.0])), replicas=draw(st.integers(1, 3)),
        updates=draw(st.sampled_from([1, 2])), grouped=draw(st.booleans()),
        over=draw(st.sampled_from([1.0, 1.5])), staleness=staleness, sync_every=every,
        in_flight=draw(st.sampled_from(["drain", "keep", "recompute"])), warm_up=4, counted=4,
        replica_units=draw(st.sampled_from([math.inf, 2.0])),
    )  # fmt: skip
    return lends_both_ways(draw, made, engine)


@given(lending_streams())
@settings(max_examples=20)
def test_with_lending_each_sample_is_learnt_from_once_within_its_age(made):
    streamed, setting = play_stream(made), made.setting
    last = streamed.counts[-1]
    assert sum(last.ages.values()) == setting.learnt * setting.iterations
    assert max(last.ages) <= -(-setting.staleness // 1)
    if setting.begun == setting.learnt:
        assert last.dropped == 0


@given(lending_streams())
@settings(max_examples=4)
def test_lending_is_played_the_same_each_time(made):
    assert play_stream(made) == play_stream(made)


def test_lent_trainers_shorten_iterations_that_wait_for_generation():
    made = stream(workload(prompts=128), learning=0.2, staleness=1.0)
    alone, lent = mean_seconds(made), mean_seconds(lends(made, trainers()))
    assert lent < 0.8 * alone
    found = long_run(lends(made, trainers()), play_stream(lends(made, trainers())))
    assert 0 < found.overlap.lent_fraction < 1


def test_lent_replicas_add_the_samples_that_each_may_have_under_way(monkeypatch):
    limits = []

    def take_with(generators, replicas):
        take(generators, replicas)
        limits.append((len(replicas), generators.queue.most_units))

    take = Generators._take_with
    monkeypatch.setattr(Generators, "_take_with", take_with)
    made = stream(workload(prompts=64), learning=0.2, staleness=1.0, replica_units=3.0)
    free = replace(made, setting=replace(made.setting, replica_units=math.inf))
    assert mean_seconds(lends(made, trainers())) < 0.8 * mean_seconds(made)
    assert mean_seconds(made) > 1.2 * mean_seconds(free)
    assert set(limits) == {(4, 12.0), (2, 6.0)}


def test_nothing_is_lent_where_samples_are_there_before_training_wants_them():
    made = stream(learning=4.0, staleness=2.0, warm_up=8)
    lent = lends(made, trainers())
    assert mean_seconds(lent) == pytest.approx(mean_seconds(made), rel=1e-9)
    assert long_run(lent, play_stream(lent)).overlap.lent_fraction == 0


def test_nothing_is_lent_once_a_switch_was_seen_to_take_longer_than_it_brings():
    made = stream(learning=0.2, staleness=1.0)
    lent = lends(made, trainers(join=1e4))
    spans = [
        span for span in play_stream(lent).spans if span.name == LENT.name and span.pool == "t"
    ]
    assert len(spans) <= 2


def test_an_adaptive_share_rises_while_training_waits():
    made = stream(workload(prompts=64), learning=0.2, staleness=1.0, updates=8, warm_up=60)
    low = mean_seconds(lends(made, trainers(until=0.1)))
    assert mean_seconds(lends(made, trainers(until=0.1, adapts=True))) < low


def test_idle_generators_shorten_the_updates_of_a_streamed_batch():
    made = stream(learning=8.0, staleness=0.0, in_flight="drain")
    helped = lends(made, to_training=generators())
    assert mean_seconds(helped) < 0.8 * mean_seconds(made)
    costly = lends(made, to_training=generators(update=8.0))
    assert mean_seconds(costly) == pytest.approx(mean_seconds(made), rel=1e-9)


def test_a_copy_of_a_model_that_no_idle_replicas_fill_helps_nothing():
    small = replace(generators(), rank_gpus=4, ranks_each=1)
    assert (small.speed_up(3), small.speed_up(4), small.speed_up(8)) == (1.0, 1.5, 2.0)
