import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.simulator.generation.playing import generate, last_tokens_of_waves
from rlplan.simulator.generation.replica import Replica
from tests.cases import draws
from tests.effort import calls_of
from tests.simulator import reference_generation as reference


def replica(batching="continuous", **changes):
    """Return a replica whose decode step takes 1 s a sequence plus 0.1 s a cached token."""
    settings = {
        "batching": batching,
        "max_running": 2,
        "kv_blocks": 100,
        "block_tokens": 1,
        "max_batched_tokens": 1000,
        "prefill_seconds": lambda sequences, tokens: sequences * tokens,
        "decode_seconds": lambda running, cached: running + 0.1 * running * cached,
    }
    return Replica(**(settings | changes))


replicas = st.builds(
    replica,
    max_running=st.integers(1, 6),
    kv_blocks=st.integers(1, 60),
    block_tokens=st.integers(1, 5),
    max_batched_tokens=st.integers(1, 30),
)
workloads = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 25)), min_size=1, max_size=12)


@pytest.mark.full
@pytest.mark.parametrize("batching", ["continuous", "calls"])
@settings(max_examples=draws(60, 200))
@given(replicas, workloads)
def test_jumps_equal_the_token_by_token_reference(batching, one, workload):
    prompts, responses = zip(*workload, strict=True)
    one = dataclasses.replace(one, batching=batching)
    play = {"continuous": reference.continuous, "calls": reference.calls}[batching]
    quick, slow = generate(one, prompts, responses), play(one, prompts, responses)
    assert quick.seconds == pytest.approx(slow.seconds, rel=1e-6)
    assert quick.num_steps == slow.steps
    assert quick.num_preemptions == slow.preemptions
    assert quick.peak_running == slow.peak_running
    assert quick.peak_blocks == slow.peak_blocks
    finish = [slow.finish[number] for number in range(len(prompts))]
    assert quick.finish_seconds == pytest.approx(finish, rel=1e-6)


def test_prompts_of_one_group_are_prefilled_once_where_prompts_go_first():
    asked = []

    def mixed(running, cached, chunks):
        asked.append((running, *chunks))
        return chunks.parts * chunks.tokens

    one = replica(max_running=4, block_tokens=4, prompt_samples=2, mixed_seconds=mixed)
    found = generate(one, [10, 10, 6, 6], [1] * 4)
    # Of second samples the whole blocks are there, 8 and 4 tokens; 10 + 2 + 6 + 2 tokens are left, which see
    # 10*5 + 2*(8 + 1) + 6*3 + 2*(4 + 1) keys.
    assert found.prefill_seconds == 20
    ((running, parts, tokens, seen),) = asked
    assert (running, parts, tokens) == (0, 4, 5)
    assert parts * tokens * (seen + tokens / 2) == pytest.approx(96)


def mixed_seconds(running, cached, chunks):
    """Cost a mixed step: affine in the cached tokens, quadratic in the chunks' own."""
    own = chunks.parts * (chunks.tokens + 0.01 * chunks.tokens * (chunks.seen + chunks.tokens / 2))
    return 0.5 + running + 0.1 * running * cached + own


def decode_alone(running, cached):
    return 0.5 + running + 0.1 * running * cached


mixing = st.builds(
    replica,
    batching=st.just("mixed"),
    max_running=st.integers(1, 6),
    kv_blocks=st.integers(1, 60),
    block_tokens=st.integers(1, 5),
    max_batched_tokens=st.integers(6, 30),
    mixed_seconds=st.just(mixed_seconds),
    decode_seconds=st.just(decode_alone),
)


@pytest.mark.full
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("reserves", [True, False])
@settings(max_examples=draws(60, 200))
@given(mixing, workloads)
def test_mixed_steps_equal_the_token_by_token_reference(chunked, reserves, one, workload):
    prompts, responses = zip(*workload, strict=True)
    one = dataclasses.replace(one, chunked_prefill=chunked, reserves_whole=reserves)
    quick, slow = generate(one, prompts, responses), reference.mixed(one, prompts, responses)
    assert quick.num_steps == slow.steps
    assert quick.num_preemptions == slow.preemptions
    assert quick.peak_running == slow.peak_running
    assert quick.peak_blocks == slow.peak_blocks
    assert quick.seconds == pytest.approx(slow.seconds, rel=1e-6)
    finish = [slow.finish[number] for number in range(len(prompts))]
    assert quick.finish_seconds == pytest.approx(finish, rel=1e-6)


@given(st.sampled_from(["static", "none"]), replicas, workloads)
def test_waves_equal_the_token_by_token_reference(batching, one, workload):
    prompts, responses = zip(*workload, strict=True)
    one = Replica(
        batching=batching,
        max_running=one.max_running,
        kv_blocks=one.kv_blocks,
        block_tokens=one.block_tokens,
        max_batched_tokens=one.max_batched_tokens,
        # Quadratic in the length, as attention is: recomputation must add it up exactly.
        prefill_seconds=lambda sequences, tokens: sequences * (1 + tokens + 0.01 * tokens**2),
        decode_seconds=one.decode_seconds,
    )
    quick, slow = generate(one, prompts, responses), reference.waves(one, prompts, responses)
    assert quick.seconds == pytest.approx(slow.seconds, rel=1e-6)
    assert quick.num_steps == slow.steps
    assert quick.finish_seconds == pytest.approx(list(slow.finish.values()), rel=1e-6)


def test_one_sequence_takes_its_prefill_and_a_step_for_each_further_token():
    done = generate(replica(), [10], [3])
    assert done.prefill_seconds == 10
    assert done.decode_seconds == pytest.approx((1 + 1.0) + (1 + 1.1))
    assert (done.num_steps, done.num_jumps) == (2, 1)


def test_a_waiting_sequence_enters_when_a_running_one_ends():
    flat = replica(prefill_seconds=lambda *_: 5.0, decode_seconds=lambda *_: 1.0)
    done = generate(flat, [1, 1, 1], [2, 4, 2])
    # 0-5 prefill of two, 6 the first ends, 6-11 prefill of the third, 12 it ends, 13 the second.
    assert done.finish_seconds == (6.0, 13.0, 12.0)
    assert done.peak_running == 2


def test_calls_wait_for_their_longest_response_and_merge_with_none():
    flat = replica("calls", prefill_seconds=lambda *_: 5.0, decode_seconds=lambda *_: 1.0)
    done = generate(flat, [1, 1, 1], [2, 4, 2])
    # 0-5 prefill of two, 6 the first ends, 8 the second; 8-13 prefill of the third, 14 it ends.
    assert done.finish_seconds == (6.0, 8.0, 14.0)
    assert (done.num_steps, done.peak_running) == (4, 2)


def test_static_waves_wait_for_their_longest_response():
    flat = replica("static", prefill_seconds=lambda *_: 5.0, decode_seconds=lambda *_: 1.0)
    assert generate(flat, [1, 1, 1], [2, 4, 2]).finish_seconds == (8.0, 8.0, 14.0)
    assert last_tokens_of_waves(flat, [1, 1, 1], [2, 4, 2]) == (6.0, 8.0, 14.0)


@given(st.sampled_from(["static", "none"]), replicas, workloads)
def test_a_response_of_a_wave_has_its_last_token_where_its_wave_would_end_if_it_were_the_longest(
    batching, one, workload
):
    prompts, responses = map(list, zip(*workload, strict=True))
    # Waves are as wide as the longest response lets them, which a cut one must not change.
    one = dataclasses.replace(one, batching=batching, kv_blocks=10_000)
    ends = last_tokens_of_waves(one, prompts, responses)
    size, played = one.max_running, generate(one, prompts, responses)
    for number, end in enumerate(ends):
        first = number // size * size
        cut = responses[:first] + [
            min(tokens, responses[number]) for tokens in responses[first : first + size]
        ]
        assert end == pytest.approx(generate(one, prompts[: len(cut)], cut).seconds, rel=1e-6)
    for first in range(0, len(ends), size):
        wave = slice(first, first + size)
        assert max(ends[wave]) == pytest.approx(played.finish_seconds[first])


def test_when_blocks_run_out_the_latest_is_computed_again():
    flat = replica(
        kv_blocks=6, prefill_seconds=lambda _, tokens: tokens, decode_seconds=lambda *_: 1.0
    )
    done = generate(flat, [2, 2], [4, 4])
    # Both reach 3 cached tokens (6 blocks); the second leaves, and returns with 2 + 2 tokens.
    assert done.num_preemptions == 1
    assert done.peak_blocks == 6
    assert done.finish_seconds == (2 + 1 + 1 + 1, 5 + 4 + 1)


def test_a_prompt_begins_only_when_all_its_chunks_fit():
    flat = replica(
        "mixed",
        kv_blocks=10,
        max_batched_tokens=6,
        chunked_prefill=True,
        decode_seconds=lambda *_: 1.0,
        mixed_seconds=lambda *_: 1.0,
    )
    done = generate(flat, [4, 8], [3, 1])
    # 2 of the second's 8 tokens would fit beside the first; it waits, then takes 6 and 2.
    assert done.finish_seconds == (3.0, 5.0)
    assert (done.num_preemptions, done.peak_running) == (0, 1)


def test_a_cache_too_small_for_one_sequence_says_by_how_many_blocks():
    done = generate(replica(kv_blocks=3, block_tokens=4), [10], [11])
    assert done.missing_blocks == 2
    assert generate(replica(kv_blocks=5, block_tokens=4), [10], [11]).missing_blocks == 0


def test_a_thousand_mixed_sequences_are_a_small_effort():
    generator = np.random.default_rng(0)
    prompts, responses = generator.integers(16, 1024, size=(2, 1024)).tolist()
    one = replica(max_running=256, kv_blocks=4000, block_tokens=16, max_batched_tokens=8192)
    done = generate(one, prompts, responses)
    assert done.num_preemptions > 0
    assert calls_of(lambda: generate(one, prompts, responses)) < 120_000
