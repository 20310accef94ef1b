"""Trainers that take batches whole, beside generators that have no more than so many prompts under way."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from rlplan.profiles.facts import load_facts
from rlplan.simulator.asynchronous import playing
from rlplan.simulator.asynchronous.playing import play_stream
from rlplan.simulator.asynchronous.samples import SampleQueue
from rlplan.simulator.asynchronous.setting import setting_of
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.simulate import simulate
from rlplan.workload import Empirical
from tests.simulator.streams import replica, setting, stream, workload
from tests.simulator.test_streaming_plans import apart, forecast

IN_TURN: dict[str, Any] = {"takes_batches": True, "limits_prompts": True}


def queue_of(**changes):
    """Return a queue of two prompts a batch, two responses each, of which two are under way."""
    work = workload(prompts=2, samples=2)
    fields = {"takes_batches": True, "most_units": 2, "grouped": True}
    made = setting(work, **(fields | changes))
    return SampleQueue(simpy.Environment(), made, itertools.repeat((10, 5)))


def begun(queue):
    """Begin all that may be begun; return its samples, one for each response."""
    bundles = iter(queue.next_bundle, None)
    return [sample for bundle in bundles for _, _, sample in bundle]


def test_a_prompt_begins_when_all_responses_of_another_have_ended():
    queue = queue_of()
    first, _, second, _ = begun(queue)
    assert (first.number, second.number) == (0, 1)
    queue.end(second, 5)
    assert begun(queue) == []
    queue.end(second, 5)
    assert [sample.number for sample in begun(queue)] == [2, 2]


def test_an_iteration_waits_for_its_own_prompts_though_later_ones_have_ended():
    queue = queue_of()
    first, _, second, _ = begun(queue)
    for _ in range(2):
        queue.end(second, 5)
    (third, _) = begun(queue)
    for _ in range(2):
        queue.end(third, 5)
    training = queue.environment.process(queue.collect(2, 0))
    queue.environment.run()
    assert training.is_alive
    for _ in range(2):
        queue.end(first, 5)
    queue.environment.run()
    assert training.value == 2 * 2 * (10 + 5)  # tokens


def test_batches_overlap_as_far_as_prompts_are_limited(monkeypatch):
    """Responses of 2 and 4 steps, a second each; training on a batch takes half a second.

    The long one of batch 1 begins at 4, where both of batch 0 and the short one of batch 1 have ended. The weights of
    batch 0 come at 5, behind the step that is under way at 4.5; the short one of batch 2 begins with them, the long one
    follows it at 7 and ends at 11. The long one of batch 1 has ended at 8: batch 1 is learnt from by 9, and so on.
    """
    lengths = itertools.cycle([(10, 3), (10, 5)])  # the first token comes with the prompt
    monkeypatch.setattr(playing, "endless_lengths", lambda *_: lengths)
    engine = replica(decode_seconds=lambda *_: 1.0, prefill_seconds=lambda *_: 0.0)
    work = workload(prompts=2, response_tokens=Empirical(values=(3, 5)))
    made = stream(
        work, learning=0.5, syncing=0.0, engine=engine, warm_up=1, counted=5,
        takes_batches=True, most_units=2,
    )  # fmt: skip
    ends = [each.end_seconds for each in play_stream(made).iterations]
    assert ends == pytest.approx([5.0, 9.0, 12.0, 16.0, 19.0, 23.0])


def test_what_is_left_of_a_batch_is_dropped_with_it_whatever_weights_began_it():
    """Two of three prompts are learnt from; the third has weights that would allow it to be learnt from an iteration later."""
    queue = queue_of(most_units=3, over=1.5, staleness=2.0)
    queue.renew(1)
    made = begun(queue)
    assert sorted({sample.number for sample in made}) == [0, 1, 2]
    for sample in made[:4]:
        queue.end(sample, 5)
    training = queue.environment.process(queue.collect(2, 0))
    queue.environment.run()
    assert training.value == 2 * 2 * (10 + 5)
    queue.drop_due(0)
    assert (queue.dropped, made[4].gone) == (1, True)
    assert [sample.number for sample in begun(queue)][::2] == [3, 4, 5]


@given(st.integers(1, 3), st.integers(1, 12), st.sampled_from(["keep", "recompute", "drain"]))
def test_each_prompt_is_learnt_from_once_and_none_too_late(staleness, most, in_flight):
    work = workload(prompts=4, samples=2)
    made = stream(
        work, learning=0.4, grouped=True, staleness=float(staleness), in_flight=in_flight,
        takes_batches=True, most_units=most,
    )  # fmt: skip
    streamed = play_stream(made)
    last = streamed.counts[-1]
    iterations = made.setting.iterations
    assert sum(last.ages.values()) == iterations * made.setting.learnt
    assert max(last.ages) <= staleness
    assert last.begun <= made.setting.quota(iterations)


@pytest.fixture
def in_turn(monkeypatch):
    """Return the forecast of a plan whose framework takes batches whole and limits prompts."""

    def found(plan):
        facts = load_facts(plan.job)
        sheet = replace(facts.framework(plan.job.framework), **IN_TURN)
        monkeypatch.setattr(facts, "framework", lambda _: sheet)
        return simulate(plan, facts), PlacedPlan(plan, facts)

    return found


def test_a_limit_lies_between_whole_batches_and_none(in_turn):
    plan = apart(staleness=1.0, in_flight="keep")
    limited, _ = in_turn(plan)
    free, whole = forecast(plan), forecast(apart("one-step-off"))
    assert free.iteration_seconds < limited.iteration_seconds < whole.iteration_seconds
    assert limited.overlap.staleness_max <= 1


def test_whole_batches_are_taken_in_one_piece_by_replicas_that_get_some_of_each_prompt(in_turn):
    plan = apart(staleness=2.0, in_flight="keep", samples=8)
    _, placed = in_turn(plan)
    made = setting_of(plan, placed.generate)
    assert (made.pieces, made.piece_updates) == ((32,), (True,))
    assert (made.bundle, made.most_units) == (4, 64)
    usual = setting_of(plan, PlacedPlan(plan, load_facts(plan.job)).generate)
    assert (usual.pieces, usual.bundle, usual.refills) == ((16, 16), 8, False)


def test_each_replica_of_a_framework_that_says_so_adds_its_prompts(monkeypatch):
    plan = apart(staleness=2.0, in_flight="keep", samples=8)
    facts = load_facts(plan.job)
    sheet = replace(facts.framework(plan.job.framework), replica_prompts=16)
    monkeypatch.setattr(facts, "framework", lambda _: sheet)
    made = setting_of(plan, PlacedPlan(plan, facts).generate)
    assert (made.replicas, made.bundle, made.refills) == (2, 4, True)
    assert (made.units_with(2), made.units_with(3)) == (32, 48)


def test_other_modes_know_no_such_limit(in_turn):
    for plan in (apart("streaming"), apart("one-step-off")):
        assert in_turn(plan)[0].iteration_seconds == forecast(plan).iteration_seconds
