"""Waves that new sequences join: a literal trace, laws, and what the executor does."""

import math

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.executor.control.feeds.rollouts import ROLL_LOOKS, ROLL_STEPS
from rlplan.rules.batches import MOST_PARTS
from rlplan.simulator.asynchronous.forecasting import LOOK_TOKENS, LOOKS_OF_CALL
from rlplan.simulator.asynchronous.setting import MOST_PIECES
from rlplan.simulator.generation.batching.joining import Calls, JoiningSet
from rlplan.simulator.generation.playing import arriving
from rlplan.simulator.generation.replica import WaveCosts
from rlplan.simulator.timeline.engine import Cores
from tests.simulator.streams import decode_seconds, prefill_seconds, replica


def joining(keeps=False, call_seconds=0.0, enough=1, **changes):
    calls = Calls(look_tokens=4, looks=2, enough=enough, call_seconds=call_seconds)
    return JoiningSet(replica(batching="static", **changes), 64, calls, keeps)


def decoded(width, first, steps):
    return sum(decode_seconds(width, first + step) for step in range(steps))


def test_calls_are_those_of_the_executor():
    assert (LOOK_TOKENS, LOOKS_OF_CALL, MOST_PIECES) == (ROLL_STEPS, ROLL_LOOKS, MOST_PARTS)


def test_a_literal_trace():
    made = joining(prompt_samples=2, call_seconds=0.5)
    for response in (3, 20):
        made.arrive(10, response)
    made.turn()  # the first ends within four tokens; both have one prompt
    assert made.ended == [1]
    assert made.prefill == pytest.approx(prefill_seconds(1, 10))
    assert made.decode == pytest.approx(decoded(2, 10, 4) + 0.5)
    made.ended.clear()
    before = made.prefill, made.decode
    made.arrive(10, 30)
    made.turn()  # both are prefilled, as long as the longer one, and neither ends in eight tokens
    assert not made.ended
    assert made.prefill - before[0] == pytest.approx(prefill_seconds(2, 14))
    assert made.decode - before[1] == pytest.approx(decoded(2, 14, 8) + 0.5)
    assert made.restart() == 10 + 12 + 10 + 8
    before = made.prefill, made.decode
    made.turn()  # what has been said is prefilled with new weights; of 20 tokens 8 are left, the last without a step
    assert made.ended == [2]
    assert made.prefill - before[0] == pytest.approx(prefill_seconds(2, 22))
    assert made.decode - before[1] == pytest.approx(decoded(2, 22, 8) + 0.5)


def test_rows_that_are_not_all_as_long_take_what_a_padded_wave_takes():
    def prefill(sequences, tokens):
        return 2 * prefill_seconds(sequences, tokens)

    def decode(width, first, steps):
        return 3 * decoded(width, first, steps)

    made = joining(uneven=WaveCosts(prefill, decode))
    made.arrive(10, 20)
    made.arrive(10, 3)
    made.turn()
    assert made.prefill == pytest.approx(prefill_seconds(2, 10))
    assert made.decode == pytest.approx(decoded(2, 10, 4))
    before = made.prefill, made.decode
    made.arrive(10, 20)
    made.turn()  # one has 14 tokens, the other 10
    assert made.prefill - before[0] == pytest.approx(2 * prefill_seconds(2, 14))
    assert made.decode - before[1] == pytest.approx(3 * decoded(2, 14, 8))
    before = made.prefill, made.decode
    made.withdraw(1)
    made.restart()
    made.turn()  # of rows alike, one is left
    assert made.prefill - before[0] == pytest.approx(prefill_seconds(1, 18))
    assert made.decode - before[1] == pytest.approx(decoded(1, 18, 8))


def test_waves_that_nobody_joins_follow_each_other_in_calls():
    calls = Calls(look_tokens=4, looks=8, enough=1, call_seconds=0.5, joins=False)
    made = arriving(replica(batching="static", max_running=2), 64, calls)
    for response in (3, 9, 2):
        made.arrive(10, response)
    made.turn()  # after a look the first has ended; the third waits until the second has, too
    assert made.ended == [1]
    assert made.decode == pytest.approx(decoded(2, 10, 4) + 0.5)
    made.turn()  # of two looks the last one's token has no step behind it
    assert made.ended == [1, 2]
    assert made.decode == pytest.approx(decoded(2, 10, 8) + 2 * 0.5)
    before = made.prefill, made.decode
    made.turn()
    assert made.ended == [1, 2, 3]
    assert made.prefill - before[0] == pytest.approx(prefill_seconds(1, 10))
    assert made.decode - before[1] == pytest.approx(decoded(1, 10, 1) + 0.5)


def test_a_cache_that_is_kept_lets_newcomers_make_a_wave_of_their_own():
    made = joining(keeps=True)
    made.arrive(10, 20)
    made.turn()
    before = made.prefill, made.decode
    assert made.restart() == 0
    made.arrive(10, 20)
    made.turn()
    assert made.prefill - before[0] == pytest.approx(prefill_seconds(1, 10))
    assert made.decode - before[1] == pytest.approx(decoded(1, 18, 8) + decoded(1, 10, 8))


@given(
    arrivals=st.lists(st.lists(st.integers(1, 30), max_size=6), min_size=1, max_size=8),
    slots=st.integers(1, 6),
    keeps=st.booleans(),
    enough=st.integers(1, 4),
)
@settings(max_examples=60)
def test_all_that_arrives_ends_once_and_no_sooner_than_its_tokens(arrivals, slots, keeps, enough):
    made, begun, ended = joining(keeps, max_running=slots, enough=enough), {}, []
    calls = {}
    for number, responses in enumerate(arrivals):
        for response in responses:
            begun[made.arrive(10, response)] = (number, response)
        if made.busy:
            made.turn()
        calls |= dict.fromkeys(made.ended, number)
        ended += made.ended
        made.ended.clear()
    number = len(arrivals)
    while made.busy:
        made.turn()
        calls |= dict.fromkeys(made.ended, number)
        ended += made.ended
        made.ended.clear()
        number += 1
    assert sorted(ended) == sorted(begun)
    for sequence, (came, response) in begun.items():
        assert calls[sequence] - came + 1 >= math.ceil(response / 8)


def test_what_is_withdrawn_says_what_it_has():
    made = joining()
    first, second = made.arrive(10, 20), made.arrive(10, 30)
    made.turn()
    assert made.withdraw(second) == 8
    assert made.withdraw(first) == 8
    assert not made.busy


@given(
    begins=st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 5)), min_size=1, max_size=8),
    count=st.sampled_from([1, 2, 3, math.inf]),
)
@settings(max_examples=60)
def test_cores_are_shared_and_never_idle_while_there_is_work_for_them(begins, count):
    environment = simpy.Environment()
    cores, ends = Cores(environment, count), {}

    def work(name, begin, seconds):
        yield environment.timeout(begin)
        yield cores.work(seconds)
        ends[name] = environment.now

    for name, (begin, seconds) in enumerate(begins):
        environment.process(work(name, begin, seconds))
    environment.run()
    whole = sum(seconds for _, seconds in begins)
    for name, (begin, seconds) in enumerate(begins):
        assert ends[name] >= begin + seconds - 1e-6
        if len(begins) <= count:
            assert ends[name] == pytest.approx(begin + seconds)
    assert max(ends.values()) <= max(begin for begin, _ in begins) + whole + 1e-6
    assert max(ends.values()) >= min(begin for begin, _ in begins) + whole / count - 1e-6


def test_three_works_on_two_cores():
    environment = simpy.Environment()
    cores, ends = Cores(environment, 2), []

    def work(seconds):
        yield cores.work(seconds)
        ends.append(environment.now)

    for seconds in (1.0, 2.0, 2.0):
        environment.process(work(seconds))
    environment.run()
    # At two thirds of a core each the first ends at 1.5; the others have a core each for the second that is left.
    assert ends == pytest.approx([1.5, 2.5, 2.5])
