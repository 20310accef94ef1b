"""The simulator's continuous batching against the decisions of vLLM's own scheduler, step by step.

Steps, the tokens of every request in every step, preemptions, blocks and the order of finishing are
equal, with no exception. What the simulator leaves out: by default vLLM schedules a step before the
tokens of the step before it are known (`async_scheduling`), so that the slot and the blocks of a
finished sequence are given away one step later, and a response that ends by its end token is computed
for one step more. That is at most a step for each sequence that waits for a slot in turn; the last
test bounds it (docs/decisions/0006).
"""

from typing import Any

import numpy as np
import pytest

from rlplan.simulator.generation.playing import generate
from rlplan.simulator.generation.replica import Replica
from tests.simulator import reference_generation as reference
from tests.vllm.scheduler_alone import Case, serve, write_tiny_model

NUM_CASES = 160
BLOCK_TOKENS = 16


def random_case(seed: int) -> Case:
    """Return a few requests under random limits, every fourth without chunks of prompts."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(2, 13))
    prompts = tuple(draw.integers(1, draw.choice([20, 60, 120]), size=count).tolist())
    responses = tuple(draw.integers(1, draw.choice([10, 40, 120]), size=count).tolist())
    longest = max(-(-(p + r) // BLOCK_TOKENS) for p, r in zip(prompts, responses, strict=True))
    max_running = int(draw.integers(1, 9))
    chunked = seed % 4 != 3
    return Case(
        prompts=prompts,
        responses=responses,
        kv_blocks=longest + int(draw.integers(0, draw.choice([4, 16, 60]))),
        block_tokens=BLOCK_TOKENS,
        max_running=max_running,
        max_batched_tokens=int(draw.integers(max_running, 100)) if chunked else 256,
        chunked_prefill=chunked,
        ignore_eos=bool(draw.integers(2)),
    )


CASES = [random_case(seed) for seed in range(NUM_CASES)]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def replica(case: Case, **costs) -> Replica:
    """Return the simulated replica of a case; a step takes a second unless `costs` say otherwise."""
    settings: dict[str, Any] = {
        "batching": "mixed",
        "max_running": case.max_running,
        "kv_blocks": case.kv_blocks,
        "block_tokens": case.block_tokens,
        "max_batched_tokens": case.max_batched_tokens,
        "chunked_prefill": case.chunked_prefill,
        "prefill_seconds": lambda *_: 1.0,
        "decode_seconds": lambda *_: 1.0,
        "mixed_seconds": lambda *_: 1.0,
    }
    return Replica(**(settings | costs))


@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_every_step_of_the_reference_computes_the_tokens_that_vllm_schedules(seed, model):
    case = CASES[seed]
    real = serve(model, case)
    played = reference.mixed(replica(case), case.prompts, case.responses)
    assert played.scheduled == [step.tokens() for step in real.steps]
    assert played.preemptions == real.num_preemptions
    assert played.finish == real.finish_step
    assert played.peak_blocks == max(step.blocks for step in real.steps)


@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_jumps_take_the_steps_that_vllm_takes(seed, model):
    case = CASES[seed]
    real = serve(model, case)
    played = generate(replica(case), case.prompts, case.responses)
    # A second a step: seconds are steps.
    finish = tuple(real.finish_step[number] for number in range(len(case.prompts)))
    assert played.finish_seconds == finish
    assert played.num_steps == len(real.steps)
    assert played.num_preemptions == real.num_preemptions
    assert played.peak_blocks == max(step.blocks for step in real.steps)
    assert played.peak_running == max(len(step.tokens()) for step in real.steps)


@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_mixed_steps_decode_and_prefill_what_vllm_does(seed, model):
    case = CASES[seed]
    real = serve(model, case)
    mixed_steps = []

    def note(running, cached, chunks):
        count, tokens, seen = chunks  # tokens and what they see: means
        pairs = count * tokens * (seen + tokens / 2)  # of a token and one that it attends to
        mixed_steps.append([running, running * cached, count, count * tokens, pairs])
        return running * cached

    # With a second for each cached token that a decoding sequence reads, seconds count those tokens.
    costs = {"mixed_seconds": note, "decode_seconds": lambda running, cached: running * cached}
    played = generate(replica(case, **costs), case.prompts, case.responses)
    expected = [
        [
            len(step.decoded),
            sum(step.decoded.values()),
            len(step.chunks),
            sum(tokens for _, tokens in step.chunks.values()),
            sum(tokens * (before + tokens / 2) for before, tokens in step.chunks.values()),
        ]
        for step in real.steps
        if step.chunks
    ]
    assert len(mixed_steps) == len(expected)
    for one, other in zip(mixed_steps, expected, strict=True):
        assert one == pytest.approx(other)
    read = sum(sum(step.decoded.values()) for step in real.steps)
    assert played.seconds == pytest.approx(read)


def test_the_cases_hold_chunks_preemptions_and_full_slots(model):
    served = [serve(model, case) for case in CASES]
    in_chunks = [
        any(before > 0 for step in one.steps for before, _ in step.chunks.values())
        for one in served
    ]
    assert sum(in_chunks) >= 60
    assert sum(one.num_preemptions > 0 for one in served) >= 40
    assert sum(len(case.prompts) > case.max_running for case in CASES) >= 60
    assert sum(case.ignore_eos for case in CASES) >= 60


def test_scheduling_in_advance_costs_under_one_step_in_three_hundred(model):
    """Bound the difference that the simulator leaves out, on a batch of usual size."""
    draw = np.random.default_rng(0)
    case = Case(
        prompts=tuple(draw.integers(64, 512, size=256).tolist()),
        responses=tuple(np.clip(draw.lognormal(6.0, 0.7, size=256), 1, 2048).astype(int).tolist()),
        kv_blocks=1500,
        max_running=64,
        max_batched_tokens=2048,
        max_model_tokens=4096,
        ignore_eos=False,
    )
    waiting, ahead = serve(model, case), serve(model, case, in_advance=True)
    assert waiting.num_preemptions > 0
    assert len(waiting.steps) <= len(ahead.steps) <= len(waiting.steps) * (1 + 1 / 300)
    played = generate(replica(case), case.prompts, case.responses)
    assert played.num_steps == len(waiting.steps)
