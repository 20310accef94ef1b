"""What an engine's share leaves to its cache: never less than nothing, never more beside more, within the GPU."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.profiles.catalog import load_engine
from rlplan.sheets import EngineShare
from rlplan.simulator.memory.transition_memory import Room, hundredths

GIB = 2**30
CAPACITY = 80 * GIB
VLLM = load_engine("vllm")

sizes = st.integers(0, 100 * GIB)
fractions = st.integers(1, 100).map(lambda hundredth: hundredth / 100)
shares = st.builds(
    EngineShare,
    of=st.sampled_from(["card", "free", "static"]),
    counts_others=st.sampled_from(["everything", "started", "nothing"]),
    awake_bytes=st.sampled_from([0, GIB]),
)


def engine_with(share):
    return replace(VLLM, share=share)


def room(weights, working, others, started=0.0):
    return Room(
        capacity_bytes=CAPACITY,
        weights_bytes=weights,
        working_bytes=working,
        others_bytes=others,
        started_bytes=started,
    )


@pytest.mark.parametrize(
    ("share", "gib"),
    [
        # Of 0.9 x 80 = 72: less weights of 14 and working memory of 2; others have 20, of them 8 from the start.
        (EngineShare(counts_others="nothing"), 56),
        (EngineShare(counts_others="started"), 48),
        (EngineShare(counts_others="everything"), 36),
        # SGLang's holds weights and cache: 72 - 14.
        (EngineShare(of="static", counts_others="nothing"), 58),
        (EngineShare(of="static", counts_others="started"), 0.9 * 72 - 14),
        # TensorRT-LLM's is of what is free: 80 - 20 - 14 - 2.
        (EngineShare(of="free"), 0.9 * 44),
    ],
)
def test_a_share_of_nine_tenths_leaves_what_its_engine_says(share, gib):
    own = room(14 * GIB, 2 * GIB, 20.0 * GIB, 8.0 * GIB)
    assert own.cache_bytes(engine_with(share), 0.9) == pytest.approx(gib * GIB)


@given(shares, fractions, sizes, sizes, st.lists(sizes, min_size=2, max_size=5))
def test_more_of_others_never_leave_more_cache_and_none_leaves_less_than_nothing(
    share, fraction, weights, working, others
):
    held = np.sort(np.array(others, dtype=np.float64))
    left = room(weights, working, held, held / 2).cache_bytes(engine_with(share), fraction)
    assert left.shape == held.shape
    assert np.all(left >= 0)
    assert np.all(np.diff(left) <= 1e-3)
    alone = [
        float(room(weights, working, each, each / 2).cache_bytes(engine_with(share), fraction))
        for each in held
    ]
    assert left.tolist() == alone


@given(shares, sizes, sizes, st.tuples(fractions, fractions).map(sorted))
def test_a_larger_share_never_leaves_less_cache(share, weights, others, pair):
    own, engine = room(weights, GIB, float(others), others / 2), engine_with(share)
    small, large = (float(own.cache_bytes(engine, fraction)) for fraction in pair)
    assert small <= large


@given(shares, sizes, st.integers(0, 10 * GIB), sizes, fractions)
def test_the_largest_share_keeps_all_within_what_may_be_used(
    share, weights, working, others, usable_fraction
):
    engine, usable = engine_with(share), usable_fraction * CAPACITY
    own = room(weights, working, float(others), others / 2)
    fraction = float(own.fraction_left(engine, usable))
    assert 0 <= fraction <= engine.memory_fraction
    counts = share.of == "free" or share.counts_others == "everything"
    if counts:
        assert fraction == engine.memory_fraction
        return
    cache = float(own.cache_bytes(engine, fraction))
    if cache:
        assert others + weights + working + cache + share.awake_bytes <= usable + 1


@given(sizes, sizes, fractions)
def test_what_lay_there_at_the_start_makes_the_share_larger_and_no_cache_smaller_than_a_hundredth(
    weights, others, usable_fraction
):
    usable = usable_fraction * CAPACITY
    told, untold = (engine_with(EngineShare(counts_others=each)) for each in ("started", "nothing"))
    own = room(weights, GIB, float(others), others / 2)
    fraction = float(own.fraction_left(told, usable))
    most = float(
        replace(own, started_bytes=0.0).cache_bytes(
            told, own.fraction_left(untold, usable, rounds=False)
        )
    )
    cache = float(own.cache_bytes(told, fraction))
    assert cache <= most + 1  # what bounds of searches take, which do not know what lay there
    if 0 < fraction < told.memory_fraction:
        assert cache >= most - CAPACITY / 100 - 1


@given(sizes, sizes, fractions)
def test_a_hundredth_more_than_the_largest_share_is_too_much(weights, others, usable_fraction):
    engine, usable = engine_with(EngineShare(counts_others="nothing")), usable_fraction * CAPACITY
    own = room(weights, GIB, float(others))
    fraction = float(own.fraction_left(engine, usable))
    if 0 < fraction < engine.memory_fraction:
        assert (fraction + 0.01) * CAPACITY + others > usable - 1


@given(shares, sizes, st.integers(0, 10 * GIB), sizes, st.integers(0, 20 * GIB))
def test_the_largest_share_leaves_room_for_weights_that_come_while_nothing_is_worked_on(
    share, weights, working, others, synced
):
    engine = engine_with(share)
    if share.of == "free" or share.counts_others == "everything":
        return
    own = replace(room(weights, working, float(others)), synced_bytes=synced)
    cache = float(own.cache_bytes(engine, float(own.fraction_left(engine, CAPACITY))))
    if cache:
        busiest = max(working + share.awake_bytes, synced)
        assert others + weights + cache + busiest <= CAPACITY + 1


def test_weights_that_come_take_what_they_need_beyond_what_the_engine_works_in():
    """Of 80 GiB 4 lie beside; 6 that come need 3 more than the 3 that are worked in: 73 of 80 GiB are left, 0.91."""
    engine = replace(engine_with(EngineShare(counts_others="nothing")), memory_fraction=1.0)
    own = replace(room(10 * GIB, 3 * GIB, 4.0 * GIB), synced_bytes=6 * GIB)
    assert float(own.fraction_left(engine, CAPACITY)) == 0.91
    assert float(replace(own, synced_bytes=0).fraction_left(engine, CAPACITY)) == 0.95


def test_shares_are_whole_hundredths_rounded_down_and_at_least_one():
    assert [hundredths(each) for each in (0.0, 0.004, 0.29, 0.666, 0.9)] == [
        0.01,
        0.01,
        0.29,
        0.66,
        0.9,
    ]


def test_what_a_sleeping_engine_leaves_is_more_where_its_replica_spans_gpus():
    """NeMo-RL issue 223: 774 MiB of one GPU, 2,440 MiB of each of two."""
    assert VLLM.share.lasting_bytes(1) == 768 * 2**20
    assert VLLM.share.lasting_bytes(2) == (768 + 1664) * 2**20
