"""Attention of one layer: causal over a whole batch (and its backward pass), and one decode step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rlplan.job import Job
from rlplan.profiles.probes.bench.contract import DeviceProbe, Keys, Settings
from rlplan.profiles.probes.bench.shapes import (
    architectures,
    distinct,
    geometric,
    operator_tp_sizes,
    prompt_tokens,
    sequence_tokens,
)

if TYPE_CHECKING:
    import torch

    from rlplan.profiles.probes.bench.clock import TorchBench

_HEADS_WITHOUT_JOB = ((8, 8, 64), (32, 8, 128))
_TOKENS_WITHOUT_JOB = (64, 256, 1024)
_SEQUENCES_WITHOUT_JOB = 16
_SEQUENCES_OF_LARGEST_POINT = 256


def _heads(job: Job | None, settings: Settings) -> Iterator[tuple[int, int, int]]:
    if job is None:
        yield from _HEADS_WITHOUT_JOB
        return
    for model in architectures(job):
        for tp in operator_tp_sizes(model, job, settings):
            yield model.num_heads // tp, model.num_kv_heads // tp, model.head_dim


def _steps(job: Job | None, settings: Settings) -> Iterator[tuple[str, int, int, int]]:
    """Yield (direction, batch, query tokens, cached tokens)."""
    lengths: tuple[int, ...] = _TOKENS_WITHOUT_JOB
    cached: tuple[int, ...] = _TOKENS_WITHOUT_JOB
    sequences = _SEQUENCES_WITHOUT_JOB
    if job is not None:
        sequences = min(job.workload.sequences, _SEQUENCES_OF_LARGEST_POINT)
        whole = sequence_tokens(job)
        lengths = tuple(sorted({*prompt_tokens(job).distinct()[-1:], *whole.distinct()}))
        cached = tuple(sorted({prompt_tokens(job).mean, whole.mean, whole.longest}))
    for batch in geometric(1, sequences, settings.step):
        for tokens in lengths:
            yield "forward", batch, tokens, 0
            yield "backward", batch, tokens, 0
        for tokens in cached:
            yield "forward", batch, 1, tokens


def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
    """Return whole sequences forward and backward, and decode steps by batch and cached length."""
    return distinct(
        {
            "direction": direction,
            "precision": settings.precision,
            "batch": batch,
            "query_tokens": query,
            "cached_tokens": cached,
            "q_heads": q_heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
        }
        for q_heads, kv_heads, head_dim in _heads(job, settings)
        for direction, batch, query, cached in _steps(job, settings)
        if 4 * batch * q_heads * query * (query + cached) * head_dim <= settings.largest_flops
        and 4 * batch * q_heads * max(query * (query + cached), (query + cached) * head_dim)
        <= settings.largest_bytes
    )


def prepare(bench: TorchBench, keys: Keys) -> Callable[[], object]:
    """Return the forward pass, or the backward pass alone over a graph that is kept."""
    from torch.nn.functional import scaled_dot_product_attention

    from rlplan.profiles.probes.bench.clock import one_way

    batch, head_dim, precision = int(keys["batch"]), int(keys["head_dim"]), str(keys["precision"])
    query_tokens = int(keys["query_tokens"])
    all_tokens = query_tokens + int(keys["cached_tokens"])
    backward = keys["direction"] == "backward"
    shapes = (
        (batch, int(keys["q_heads"]), query_tokens, head_dim),
        (batch, int(keys["kv_heads"]), all_tokens, head_dim),
        (batch, int(keys["kv_heads"]), all_tokens, head_dim),
    )
    query, key, value = (
        bench.tensor(*shape, precision=precision, with_gradient=backward) for shape in shapes
    )

    def forward() -> torch.Tensor:
        return scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=query_tokens == all_tokens and query_tokens > 1,
            enable_gqa=keys["q_heads"] != keys["kv_heads"],
        )

    return one_way(forward, (query, key, value), backward=backward)


PROBE = DeviceProbe(name="attention", table="attention", points=points, prepare=prepare)
