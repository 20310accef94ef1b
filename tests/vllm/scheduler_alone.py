"""vLLM's own scheduler and KV-cache bookkeeping, driven step by step without a model."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

# Before vLLM is imported: it asks no network, and says only what went wrong.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

END_TOKEN, WORD_TOKEN = 2, 5
TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": END_TOKEN,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Requests (prompt and response tokens) and the limits under which they are served."""

    prompts: tuple[int, ...]
    responses: tuple[int, ...]
    kv_blocks: int
    block_tokens: int = 16
    max_running: int
    max_batched_tokens: int
    chunked_prefill: bool = True
    max_model_tokens: int = 256
    ignore_eos: bool = True  # else a response ends by its end token, not by its largest length


@dataclass(frozen=True)
class Step:
    """What one step computed, by request."""

    decoded: dict[int, int]  # request -> tokens in its cache before
    chunks: dict[int, tuple[int, int]]  # request -> tokens computed before, tokens computed now
    blocks: int  # KV blocks held

    def tokens(self):
        """Return the tokens that the step computes, by request."""
        return dict.fromkeys(self.decoded, 1) | {one: now for one, (_, now) in self.chunks.items()}


@dataclass
class Served:
    """The steps in which requests were served; steps count from one."""

    steps: list[Step] = field(default_factory=list)
    finish_step: dict[int, int] = field(default_factory=dict)
    num_preemptions: int = 0
    num_wasted_tokens: int = 0  # computed after a response had ended


def write_tiny_model(folder: Path) -> str:
    """Write a model without weights: all that a scheduler needs to know."""
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA), encoding="utf-8")
    return str(folder)


def build(model: str, case: Case, *, in_advance: bool = False) -> Scheduler:
    """Return vLLM's scheduler for a case; `in_advance`: the one that does not wait for tokens."""
    config = EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=case.max_model_tokens,
        max_num_seqs=case.max_running,
        max_num_batched_tokens=case.max_batched_tokens,
        block_size=case.block_tokens,
        enable_chunked_prefill=case.chunked_prefill,
        enable_prefix_caching=False,
        async_scheduling=in_advance,
    ).create_engine_config()
    # One block of the pool is a null block that no request gets.
    num_blocks = config.cache_config.num_gpu_blocks = case.kv_blocks + 1
    layer = FullAttentionSpec(
        block_size=case.block_tokens, num_kv_heads=1, head_size=8, dtype=torch.float32
    )
    return (AsyncScheduler if in_advance else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=case.block_tokens,
        hash_block_size=case.block_tokens,
        log_stats=False,
    )


def serve(model: str, case: Case, *, in_advance: bool = False) -> Served:
    """Serve a case's requests, all there at the start, and note every step.

    `in_advance` schedules a step before the tokens of the step before it are known, as vLLM does
    by default where its workers allow it.
    """
    scheduler = build(model, case, in_advance=in_advance)
    requests = [_request(case, number) for number in range(len(case.prompts))]
    for request in requests:
        scheduler.add_request(request)
    served = Served()
    decoding: set[int] = set()
    under_way = []
    while scheduler.has_unfinished_requests() or under_way:
        if scheduler.has_unfinished_requests():
            planned = scheduler.schedule()
            step = _step(scheduler, requests, decoding, planned)
            if step.tokens():
                served.steps.append(step)
            under_way.append((len(served.steps), planned, _sampled(requests, step)))
            if len(under_way) <= in_advance:
                continue
        _hand_back(scheduler, requests, case, served, under_way.pop(0))
    served.num_preemptions = sum(request.num_preemptions for request in requests)
    return served


def _request(case: Case, number: int) -> Request:
    response = case.responses[number]
    params = SamplingParams(
        max_tokens=response if case.ignore_eos else response + 100,
        ignore_eos=case.ignore_eos,
    )
    params.update_from_generation_config({}, END_TOKEN)
    return Request(
        request_id=str(number),
        prompt_token_ids=[WORD_TOKEN] * case.prompts[number],
        sampling_params=params,
        pooling_params=None,
    )


def _step(scheduler, requests, decoding, planned) -> Step:
    """Note what a step computes; `decoding` holds who has computed all that it was given."""
    decoding -= {int(name) for name in planned.preempted_req_ids or ()}
    decoded, chunks = {}, {}
    for name, tokens in planned.num_scheduled_tokens.items():
        one = requests[int(name)]
        before = one.num_computed_tokens - tokens  # schedule() has already counted them
        if int(name) in decoding:
            assert tokens == 1
            decoded[int(name)] = before
        else:
            chunks[int(name)] = (before, tokens)
        if not one.is_prefill_chunk:
            decoding.add(int(name))
    pool = scheduler.kv_cache_manager.block_pool
    return Step(decoded, chunks, pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())


def _sampled(requests, step: Step) -> dict[int, bool]:
    """Tell by request of a step whether the step gives it a token."""
    return {number: not requests[number].is_prefill_chunk for number in step.tokens()}


def _hand_back(scheduler, requests, case: Case, served: Served, done) -> None:
    """Tell the scheduler the tokens of a step that has been carried out."""
    number, planned, sampled = done
    tokens = []
    for one, gives in sampled.items():
        ends = requests[one].num_output_tokens + 1 == case.responses[one]
        word = END_TOKEN if ends and not case.ignore_eos else WORD_TOKEN
        tokens.append([word] if gives else [])
        if requests[one].is_finished():
            served.num_wasted_tokens += 1
    names = [str(one) for one in sampled]
    scheduler.update_from_output(
        planned,
        ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=tokens,
            pooler_output=[],
        ),
    )
    for one in sampled:
        if requests[one].is_finished():
            served.finish_step.setdefault(one, number)
