"""Generation beside training: laws, and a token-level reference on small cases."""

import itertools
import math
import statistics
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.estimate import Estimate
from rlplan.results.forecast import CALL
from rlplan.simulator.asynchronous.playing import long_run, play_stream
from rlplan.simulator.asynchronous.samples import batch_tokens, endless_lengths
from rlplan.simulator.asynchronous.training import QUEUE_CALLS, piece_work
from rlplan.simulator.costs.taskcost import cost_of
from rlplan.simulator.generation.batching.joining import Calls
from rlplan.simulator.workload import evenly, longest_of
from rlplan.workload import Lognormal
from tests.simulator.reference_streaming import System
from tests.simulator.streams import (
    decode_seconds,
    entry,
    mean_seconds,
    prefill_seconds,
    preparing_works,
    replica,
    stream,
    with_setting,
    workload,
)

BOUNDS = st.sampled_from([(0.0, 1), (1.0, 1), (2.0, 1), (1.0, 2), (3.0, 2), (3.5, 2), (5.0, 4)])
IN_FLIGHT = st.sampled_from(["drain", "keep", "recompute"])


@st.composite
def streams(draw, overs=(1.0,)):
    staleness, every = draw(BOUNDS)
    samples = draw(st.sampled_from([1, 4]))
    work = workload(prompts=draw(st.sampled_from([4, 8])), samples=samples)
    batching = draw(st.sampled_from(["continuous", "mixed", "static"]))
    engine = replica(
        batching=batching,
        max_running=draw(st.integers(2, 12)),
        chunked_prefill=batching == "mixed",
        max_batched_tokens=32,
        kv_blocks=draw(st.sampled_from([6, 40])),
        block_tokens=8,
        mixed_seconds=lambda running, cached, chunks: (
            prefill_seconds(chunks.parts, chunks.tokens) + decode_seconds(running, cached)
        ),
    )
    calls = Calls(look_tokens=4, looks=2, enough=draw(st.integers(1, 4)), call_seconds=0.01)
    learning, over = draw(st.sampled_from([0.05, 1.0, 4.0])), draw(st.sampled_from(overs))
    fixed = over == 1 and draw(st.booleans())
    works = preparing_works(learning, draw(st.sampled_from([4, 8, 12])), fixed=fixed)
    return stream(
        work,
        calls=draw(st.sampled_from([None, calls])) if batching == "static" else None,
        cores=draw(st.sampled_from([math.inf, 1, 2])),
        works=draw(st.sampled_from([None, works])),
        ahead=draw(st.booleans()),
        write_seconds=0.01,
        learning=learning,
        engine=engine,
        replicas=draw(st.integers(1, 3)),
        updates=draw(st.sampled_from([1, 2])),
        grouped=draw(st.booleans()),
        over=over,
        staleness=staleness,
        sync_every=every,
        in_flight=draw(IN_FLIGHT),
        warm_up=4,
        counted=4,
    )


@pytest.mark.full
@given(streams(overs=(1.0, 1.25, 2.0)))
@settings(max_examples=60)
def test_no_sample_is_learnt_from_later_than_the_staleness_allows_and_each_but_once(made):
    streamed = play_stream(made)
    ages, setting = Counter(streamed.counts[-1].ages), made.setting
    assert max(ages) <= -(-setting.staleness // 1)
    assert min(ages) >= 0
    assert sum(ages.values()) == setting.learnt * setting.iterations


@given(streams())
@settings(max_examples=20)
def test_the_same_plan_is_played_the_same(made):
    assert play_stream(made) == play_stream(made)


@given(streams())
@settings(max_examples=30)
def test_without_drops_all_that_is_learnt_from_was_generated(made):
    last = play_stream(made).counts[-1]
    setting = made.setting
    prompts = 10 * setting.learnt * setting.unit * setting.iterations
    assert last.dropped == 0
    assert last.taken <= last.generated + prompts


@pytest.mark.full
@given(streams(overs=(1.0, 1.5)))
@settings(max_examples=30)
def test_an_iteration_is_no_shorter_than_its_update_and_its_weights_on_their_way(made):
    streamed = play_stream(made)
    for span, count in zip(streamed.iterations, streamed.counts, strict=True):
        synced = (span.iteration + 1) % made.setting.sync_every == 0
        learning = count.reading.busy_seconds["t"]
        assert span.end_seconds >= learning - 1e-9
        if synced:
            assert span.seconds >= made.transition_seconds


@pytest.mark.parametrize("in_flight", ["drain", "keep", "recompute"])
@pytest.mark.parametrize(
    ("staleness", "every", "learning"),
    [(0.0, 1, 1.0), (1.0, 1, 0.05), (1.0, 1, 2.0), (3.0, 2, 0.4), (2.5, 2, 0.4), (5.0, 4, 0.1)],
)
def test_jumps_equal_steps_token_by_token(staleness, every, learning, in_flight):
    made = stream(
        workload(prompts=10), learning=learning, staleness=staleness, sync_every=every,
        in_flight=in_flight, engine=replica(max_running=5), warm_up=4, counted=8,
    )  # fmt: skip
    batch = batch_tokens(made.workload, made.setting)
    system = System(
        lengths=endless_lengths(made.workload, made.setting),
        workers=2, slots=5, prefill=prefill_seconds, decode=decode_seconds, learnt=10,
        learning=lambda tokens: learning * tokens / batch, syncing=0.1,
        staleness=staleness, every=every, in_flight=in_flight,
    )  # fmt: skip
    ends, ages = system.play(12)
    streamed = play_stream(made)
    assert [each.end_seconds for each in streamed.iterations] == pytest.approx(ends, rel=1e-9)
    assert Counter(streamed.counts[-1].ages) == Counter(ages[: 12 * 10])


# The order in which lengths come is drawn once; under another bound other responses stand side by side, which
# moves an iteration by a few per cent of it in either direction.
LUCK = 0.03


@pytest.mark.full
@pytest.mark.parametrize("learning", [0.2, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("in_flight", ["drain", "keep"])
def test_more_staleness_is_never_slower(learning, in_flight):
    seconds = []
    for staleness in (0.0, 1.0, 2.0, 4.0, 8.0):
        made = stream(
            workload(prompts=64), learning=learning, staleness=staleness, in_flight=in_flight,
            engine=replica(max_running=64), warm_up=16, counted=16,
        )  # fmt: skip
        seconds.append(mean_seconds(made))
    assert all(later <= sooner * (1 + LUCK) for sooner, later in itertools.pairwise(seconds))


def test_one_iteration_ahead_waits_for_no_more_than_generation_where_that_dominates():
    """A batch in 3 s and an update in 0.1 s: to overlap them brings what the update takes, no more."""
    made = stream(workload(prompts=64), learning=0.1, staleness=1.0, in_flight="drain")
    ahead = mean_seconds(made)
    none = with_setting(made, staleness=0.0)
    behind = mean_seconds(none)
    assert ahead == pytest.approx(behind, rel=0.15)


def test_weights_that_go_over_less_often_cost_less():
    """At the same bound of 7 updates, what a transition of 2 s takes is shared by the iterations between."""
    seconds = []
    for every in (1, 2, 4):
        made = stream(
            workload(prompts=64), learning=1.5, syncing=2.0, staleness=7.0, sync_every=every,
            engine=replica(max_running=64), warm_up=16, counted=16,
        )  # fmt: skip
        seconds.append(mean_seconds(made))
    assert seconds == pytest.approx([3.5, 2.5, 2.0], rel=0.02)


@pytest.mark.parametrize("staleness", [0.0, 1.0])
def test_pieces_that_are_learnt_from_together_take_what_one_of_them_all_takes(staleness):
    whole = stream(staleness=staleness, updates=1)
    pieces = {"pieces": (4, 4, 4, 4), "piece_updates": (False, False, False, True)}
    together = with_setting(whole, learns=(False, False, False, True), **pieces)
    assert mean_seconds(together) == pytest.approx(mean_seconds(whole))
    assert mean_seconds(with_setting(whole, **pieces)) < mean_seconds(whole) + 1e-9


def test_small_batches_have_the_lengths_of_the_distribution_together():
    made = stream(
        workload(prompts=16, samples=4, response_tokens=Lognormal(mean=24.0, std=24.0, max=128))
    )
    drawn = list(itertools.islice(endless_lengths(made.workload, made.setting), 512))
    assert (
        sorted(length for _, length in drawn) == evenly(made.workload.response_tokens, 512).tolist()
    )
    longest = [max(length for _, length in drawn[at : at + 64]) for at in range(0, 512, 64)]
    usual, spread = longest_of(evenly(made.workload.response_tokens, 4096), 64)
    assert statistics.mean(longest) == pytest.approx(usual, abs=spread / math.sqrt(8))
    assert batch_tokens(made.workload, made.setting) == pytest.approx(sum(map(sum, drawn)) / 8)


def test_a_response_ends_where_a_sequence_may_have_no_more_tokens():
    most = 60
    made = stream(
        workload(
            prompts=16, samples=4, prompt_tokens=Lognormal(mean=24.0, std=12.0, max=50),
            response_tokens=Lognormal(mean=24.0, std=24.0, max=128), max_total_tokens=most,
        ),
        engine=replica(max_running=1, kv_blocks=-(-most // 16)),
    )  # fmt: skip
    drawn = list(itertools.islice(endless_lengths(made.workload, made.setting), 512))
    assert max(map(sum, drawn)) == most
    assert min(response for _, response in drawn) >= 1
    assert mean_seconds(made) > 0  # a cache of one sequence at a time holds each of them


def test_responses_that_join_do_not_wait_for_a_wave_to_end():
    engine = replica(batching="static", decode_seconds=lambda _, __: 0.02)
    calls = Calls(look_tokens=4, looks=2, enough=1, call_seconds=0.0)
    made = {"engine": engine, "learning": 0.1, "staleness": 4.0, "in_flight": "recompute"}
    assert mean_seconds(stream(calls=calls, **made)) < mean_seconds(stream(**made))


def test_a_host_with_a_core_for_all_works_takes_their_sum():
    """Replicas and training on one core: an iteration takes what it takes to generate, and to learn."""
    made = stream(learning=2.0, staleness=1.0, syncing=0.0, replicas=1, cores=1)
    counts, setting = play_stream(made).counts, made.setting
    apart = with_setting(made, staleness=0.0)
    alone = mean_seconds(replace(apart, cores=math.inf))
    assert counts[-1].reading.at_seconds / setting.iterations > 2.0
    assert mean_seconds(made) > mean_seconds(replace(made, cores=2))
    assert mean_seconds(made) <= alone * 1.05


def test_what_is_prepared_as_it_is_ready_does_not_wait_for_the_whole_update():
    whole = stream(works=preparing_works(0.2, 4), staleness=0.0)
    assert mean_seconds(with_setting(whole, ahead=True)) < mean_seconds(whole)


@given(streams())
@settings(max_examples=30)
def test_what_prepares_ahead_takes_every_response_once(made):
    """All lengths are alike, so that shares are as long as they have responses."""
    work = replace(made.workload, response_tokens=9)
    made = with_setting(replace(made, workload=work), ahead=True)
    setting, streamed = made.setting, play_stream(replace(made, cores=math.inf))
    spans = [span for span in streamed.spans if span.name == "reference.compute_log_prob"]
    batches = sum(span.seconds for span in spans) / 0.5
    most = setting.iterations + math.ceil(setting.staleness)
    assert not spans or setting.iterations - 1e-9 <= batches <= most + 1e-9
    assert all(
        span.end_seconds <= other.start_seconds + 1e-9 for span, other in itertools.pairwise(spans)
    )


def test_dropping_the_last_shortens_streaming_iterations():
    made = stream(workload(prompts=32), learning=0.1, staleness=0.0)
    more = with_setting(made, begun=40)
    assert mean_seconds(more) < mean_seconds(made)
    found = long_run(more, play_stream(more))
    assert 0 < found.overlap.dropped_fraction < 0.5
    assert found.learnt_share < 1  # the longest are the last


@pytest.mark.full
@pytest.mark.parametrize(
    ("staleness", "every", "in_flight"),
    [(0.0, 1, "drain"), (1.0, 1, "drain"), (1.0, 1, "keep"), (3.0, 2, "recompute")],
)
def test_few_replicas_stand_for_many(staleness, every, in_flight):
    """A quarter of them are somewhat too fast: of more replicas the last to end ends later."""
    whole = stream(
        workload(prompts=2048), learning=0.8, staleness=staleness, sync_every=every, replicas=8,
        in_flight=in_flight, engine=replica(max_running=512), warm_up=4, counted=8,
    )  # fmt: skip
    part = stream(
        workload(prompts=512), learning=0.8, staleness=staleness, sync_every=every, replicas=2,
        in_flight=in_flight, engine=replica(max_running=512), warm_up=4, counted=8, whole_replicas=8,
    )  # fmt: skip
    assert 0.9 < mean_seconds(part) / mean_seconds(whole) < 1.01


def test_what_goes_with_an_update_is_called_as_often_as_updates_are():
    infer = {"forward": Estimate(4.0), CALL: Estimate(0.25)}
    before = replace(entry("actor.compute_log_prob", "t", 0.0), cost=cost_of(infer))
    update = entry("actor.update", "t", 4.0, after=("actor.compute_log_prob",))

    def seconds(together):
        works = [
            piece_work(
                before, (), learns=False, together=together, calls_each=True, queue_seconds=0.25
            ),
            piece_work(update, (before.work.key,), learns=True),
        ]
        made = stream(workload(response_tokens=9), works=works, cores=1, learning=0.0)
        pieces = {"pieces": (4, 4, 4, 4), "piece_updates": (False, False, False, True)}
        return mean_seconds(with_setting(made, learns=(False, False, False, True), **pieces))

    # On one core nothing hides a call: three pieces fewer are three calls, and six of the queue's, fewer.
    assert seconds(together=False) - seconds(together=True) == pytest.approx(
        3 * 0.25 * (1 + QUEUE_CALLS)
    )


def test_each_piece_is_a_call_and_its_samples_come_by_calls_of_the_queue():
    # Learning is so slow that it alone says how long iterations take.
    cost = {"forward": Estimate(8.0), CALL: Estimate(0.25)}
    update = replace(entry("actor.update", "t", 0.0), cost=cost_of(cost))

    def seconds(calls_each):
        queue_seconds = 0.25 if calls_each else 0.0
        work = piece_work(
            update, (), learns=True, calls_each=calls_each, queue_seconds=queue_seconds
        )
        alike = workload(
            response_tokens=9
        )  # batches of other tokens would take a call's share of them too
        return mean_seconds(stream(alike, works=[work], updates=2))

    # One call more; and the first piece's samples are waited for, the second's come beside its update.
    more = seconds(calls_each=True) - seconds(calls_each=False)
    assert more == pytest.approx(0.25 + QUEUE_CALLS * 0.25)
