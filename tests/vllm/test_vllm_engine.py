"""The vLLM engine's contract: what it generates is what the weights of its shard say."""

import os
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from rlplan.errors import InfeasibleError, PlanError
from rlplan.executor.data.batches import PADDING, RESPONSE
from rlplan.executor.passes import infer
from rlplan.executor.rollout.engines import start_engine
from tests.vllm.engine_alone import (
    LENGTHS,
    MODEL,
    PROMPTS,
    both,
    generate,
    scale,
    setup_of,
    shard_of,
)

MODELS = {
    "llama": MODEL,
    "mistral, tied": replace(MODEL, family="mistral", tied_embeddings=True),
    "qwen2": replace(MODEL, family="qwen2", qkv_bias=True),
    "qwen3": replace(MODEL, family="qwen3", qk_norm=True),
}


@cache
def started(name):
    shard = shard_of(MODELS[name])
    engines = both(shard, setup_of(MODELS[name]))
    engines[0].load_weights()
    return shard, *engines


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_the_torch_engines_after_every_update(name, temperature):
    shard, vllm, own = started(name)
    for factor in (1.0, 0.9, 1.2):
        scale(shard, factor)
        vllm.load_weights()
        made = generate(vllm, greedy=True, temperature=temperature)
        expected = generate(own, greedy=True, temperature=temperature)
        assert torch.equal(made.tokens, expected.tokens)
        assert torch.equal(made.parts, expected.parts)
        torch.testing.assert_close(made.log_probs, expected.log_probs, atol=1e-4, rtol=0)


def test_other_weights_say_other_tokens():
    shard, vllm, _ = started("llama")
    before = generate(vllm, greedy=True)
    scale(shard, 0.7)
    assert torch.equal(generate(vllm, greedy=True).tokens, before.tokens)
    vllm.load_weights()
    assert not torch.equal(generate(vllm, greedy=True).tokens, before.tokens)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_of_drawn_tokens_are_those_at_the_temperature(temperature):
    shard, vllm, _ = started("llama")
    vllm.load_weights()
    made = generate(vllm, temperature=temperature)
    said = infer(
        shard, made.tokens, made.parts, "log_probs", micro_batch=8, temperature=temperature
    )
    drawn = made.parts == RESPONSE
    torch.testing.assert_close(made.log_probs[drawn], said[drawn], atol=1e-4, rtol=0)
    assert not made.log_probs[~drawn].any()


def test_responses_have_their_lengths_and_begin_after_their_prompts():
    made = generate(started("llama")[1])
    width = PROMPTS.shape[1]
    assert (made.parts == RESPONSE).sum(dim=1).tolist() == list(LENGTHS)
    assert torch.equal(made.tokens[:, :width], PROMPTS)
    assert (made.parts[2, width:] == PADDING).all()


def test_a_response_ends_with_the_end_token():
    vllm = started("llama")[1]
    whole = generate(vllm)
    width = PROMPTS.shape[1]
    end = int(whole.tokens[3, width + 4])
    first = whole.tokens[3, width:].tolist().index(end)
    made = generate(vllm, end_ids=(end,))
    assert (made.parts[3] == RESPONSE).sum() == first + 1
    assert made.tokens[3, width + first] == end
    assert not made.tokens[3, width + first + 1 :].any()


def test_draws_repeat_for_a_seed_and_an_iteration_and_are_others_for_others():
    vllm = started("llama")[1]
    first = generate(vllm)
    assert torch.equal(generate(vllm).tokens, first.tokens)
    assert not torch.equal(generate(vllm, iteration=1).tokens, first.tokens)
    assert not torch.equal(generate(vllm, seed=8).tokens, first.tokens)


def test_the_plans_limits_are_the_engines():
    config = started("llama")[1]._llm.llm_engine.vllm_config
    assert config.scheduler_config.max_num_seqs == 3
    assert config.cache_config.gpu_memory_utilization == 0.9
    # Three sequences of 16 tokens take a block of 128 each, and vLLM one; 2 layers, keys and
    # values of 2 heads of 32 in fp32.
    assert config.cache_config.kv_cache_memory_bytes == 4 * 128 * 2 * 2 * 2 * 32 * 4


def test_the_cache_and_the_weights_fill_the_plans_share_of_memory_at_most(monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB, as one may have it for a server
    shard = started("llama")[0]
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share = 20 * 2**20  # of 32 MiB of cache that 256 sequences want
    setup = setup_of(MODEL, max_running=256, memory_fraction=share / memory_bytes)
    engine: Any = start_engine("vllm", shard, setup)
    config = engine._llm.llm_engine.vllm_config
    held = config.cache_config.kv_cache_memory_bytes + shard.flat.weight_bytes
    assert share - 1 <= held <= share


def test_a_share_of_memory_in_which_no_sequence_fits_is_refused_by_name():
    with pytest.raises(
        InfeasibleError, match=r"memory_fraction 1e-05 is .* raise it, or plan with"
    ):
        start_engine("vllm", started("llama")[0], setup_of(MODEL, memory_fraction=1e-5))


def test_what_vllm_itself_refuses_is_said_of_the_plans_task():
    with pytest.raises(
        PlanError, match=r"(?s)actor\.generate: vLLM refuses to start: .*memory_util"
    ):
        start_engine("vllm", started("llama")[0], setup_of(MODEL, memory_fraction=1.5))


def test_a_build_of_vllm_for_other_devices_is_refused_by_name():
    from rlplan.executor.rollout.engines.vllm import check_build

    here, other = ("cuda", "cpu") if torch.cuda.is_available() else ("cpu", "cuda")
    check_build(here)
    with pytest.raises(
        PlanError, match=rf"is vllm on {other}, but the vLLM .* runs on {here}: inst"
    ):
        check_build(other)


@pytest.mark.gpu
def test_on_a_gpu_the_engine_rests_without_its_weights_and_its_cache():
    shard = shard_of(MODEL, device="cuda")
    vllm, own = both(shard, setup_of(MODEL, memory_fraction=0.2))
    free_bytes = []
    for factor in (1.0, 0.8):
        scale(shard, factor)
        vllm.load_weights()
        free_bytes.append(torch.cuda.mem_get_info()[0])
        made, expected = (generate(engine, greedy=True) for engine in (vllm, own))
        assert torch.equal(made.tokens, expected.tokens)
        vllm.rest()
        free_bytes.append(torch.cuda.mem_get_info()[0])
    awake, asleep, awake_again, asleep_again = free_bytes
    tenth = 0.1 * torch.cuda.mem_get_info()[1]
    assert asleep - awake > tenth
    assert asleep_again - awake_again > tenth
