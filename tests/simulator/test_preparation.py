"""Preparation that goes on by itself, to the letter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.simulator.asynchronous.samples import Sample
from rlplan.simulator.asynchronous.training import (
    Preparation,
    ReadyResponses,
    Response,
    in_passes,
    learning,
    piece_work,
    preparing,
)
from rlplan.simulator.timeline.engine import Engine, Queueing
from tests.simulator.streams import entry, preparing_works

TOKENS = 10


class Bench:
    """Works that take responses, four of a batch, each of ten tokens."""

    def __init__(self, works, *, unit=1):
        self.engine = Engine(Queueing)
        self.environment = self.engine.environment
        self.prepared = []
        self.preparation = Preparation(
            self.engine,
            works,
            batch_tokens=4 * TOKENS,
            whole=4,
            unit=unit,
            write_seconds=0.5,
            prepared=lambda sample: self.prepared.append((self.environment.now, sample.number)),
        )

    def end(self, at_seconds, *numbers):
        self.environment.process(self._end(at_seconds, numbers))

    def _end(self, at_seconds, numbers):
        yield self.environment.timeout(at_seconds)
        for number in numbers:
            self.preparation.end(Sample(number, 0, 1, prompt=4), TOKENS - 4)

    def spans(self):
        self.environment.run()
        return [(span.name, span.start_seconds, span.end_seconds) for span in self.engine.spans]


def infer(seconds=4.0, **changes):
    return piece_work(entry("infer", "t", seconds), (), learns=False, **changes)


def test_responses_go_through_a_model_a_share_at_a_time():
    bench = Bench([infer(share=2)])
    bench.end(0.0, 0, 1, 2)
    # One alone goes on where two are not there.
    assert bench.spans() == [("infer", 0.5, 2.5), ("infer", 2.5, 3.5)]
    assert bench.prepared == [(2.5, 0), (2.5, 1), (3.5, 2)]


def test_each_pass_takes_what_it_takes_however_few_responses_it_has():
    work = in_passes(infer(share=2), 0.5, passes=2)
    assert work.sample_seconds == 3.0
    bench = Bench([work])
    bench.end(0.0, 0, 1, 2)
    # 0.5 s for each pass, and 0.75 s for each of a batch's four responses.
    assert bench.spans() == [("infer", 0.5, 2.5), ("infer", 2.5, 3.75)]


def test_two_shares_are_under_way_and_those_that_come_later_fill_the_third():
    bench = Bench([infer(share=4)])
    for at_seconds, number in enumerate([0, 1, 2, 3]):
        bench.end(0.1 * at_seconds, number)
    # The first goes on alone and the second waits behind it, alone too; two come before the first ends.
    assert bench.spans() == [
        ("infer", 0.5, 1.5),
        ("infer", 1.5, 2.5),
        ("infer", 2.5, 4.5),
    ]


def test_a_rule_judges_all_that_is_there_of_the_oldest_batch():
    bench = Bench([infer(share=0)])
    bench.end(0.0, 5, 2, 4, 3)
    assert bench.spans() == [("infer", 0.5, 2.5), ("infer", 2.5, 4.5)]
    assert [number for _, number in bench.prepared] == [2, 3, 4, 5]


def test_fixed_shares_wait_for_all_of_their_own():
    bench = Bench([infer(share=2, fixed=True)])
    bench.end(0.0, 1, 2)
    bench.end(10.0, 3)
    bench.end(20.0, 0)
    assert bench.spans() == [("infer", 10.5, 12.5), ("infer", 20.5, 22.5)]
    assert bench.prepared == [(12.5, 2), (12.5, 3), (22.5, 1), (22.5, 0)]


def test_a_response_is_prepared_once_all_works_have_had_it():
    first = entry("first", "t", 4.0)
    second = entry("second", "r", 8.0)
    third = entry("third", "r", 0.4)
    works = [
        piece_work(first, (), learns=False, share=4),
        piece_work(second, ("first",), learns=False, share=4),
        piece_work(third, ("first",), learns=False, share=4),
    ]
    bench = Bench(works)
    bench.end(0.0, 0)
    assert bench.spans() == [("first", 0.5, 1.5), ("second", 1.5, 3.5), ("third", 3.5, 3.6)]
    assert bench.prepared == [(pytest.approx(3.6), 0)]


def test_without_works_a_response_is_prepared_once_it_is_written():
    bench = Bench([])
    bench.end(1.0, 0)
    bench.environment.run()
    assert bench.prepared == [(1.5, 0)]


def test_what_infers_with_an_update_and_what_follows_it_do_not_prepare():
    rule, reference, update = preparing_works(1.0, 4)
    log_prob = piece_work(entry("log_prob", "t", 1.0), (), learns=False, together=True)
    transfer = piece_work(entry("transfer", "t", 0.1), ("log_prob",), learns=False)
    works = [rule, reference, log_prob, transfer, update]
    names = [each.entry.work.key for each in preparing(works)]
    assert names == ["rule.compute_reward", "reference.compute_log_prob"]
    assert [(each.entry.work.key, each.after) for each in learning(works)] == [
        ("log_prob", ()),
        ("transfer", ("log_prob",)),
        ("actor.update", ()),
    ]


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=6) | st.none(), max_size=12),
    st.integers(0, 3),
    st.sampled_from([(4, 1), (4, 2), (6, 3), (3, 2)]),
)
def test_those_of_the_oldest_samples_go_first_and_of_one_sample_those_that_came_first(
    steps, share, sizes
):
    whole, unit = sizes
    ready, waiting = ReadyResponses(infer(share=share), whole, unit), []
    for step in steps:
        if step is not None:  # samples' numbers of what comes together
            come = [Response(Sample(number, 0, 1), TOKENS, 1) for number in step]
            waiting += come
            ready.add(come)
            continue
        waiting.sort(key=lambda response: response.sample.number)  # stable: as they came
        batches = [response.sample.number * unit // whole for response in waiting]
        count = share or batches.count(min(batches, default=0))
        taken, waiting = waiting[:count], waiting[count:]
        assert [id(each) for each in ready.take()] == [id(each) for each in taken]
