"""The operators of a model's layers and ends on one device: the one list from which all costs follow.

Shapes follow Megatron-style tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053, section 3): with one
all-reduce after each part of a layer, or a reduce-scatter and an all-gather with sequence parallelism
(Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2). What parts compute stands in `rlplan.parts`.
"""

from rlplan.models.adapter import Adapter
from rlplan.models.model import Head, ModelArchitecture
from rlplan.models.operators import (
    FP32_BYTES,
    Batch,
    Collective,
    Elementwise,
    Gemm,
    Operators,
    Shard,
)
from rlplan.parts import LayerPart, attention_of, parts_of
from rlplan.simulator.model.adapters import frozen, with_adapters


def layer_operators(
    model: ModelArchitecture, shard: Shard, batch: Batch, adapter: Adapter | None = None
) -> Operators:
    """Return the forward operators of one layer on one device: its parts between norms and residuals.

    Args:
        adapter: What is trained beside its frozen weights.
    """
    tokens = -(-batch.tokens // shard.cp)
    row_bytes = tokens * model.hidden_size * shard.value_bytes
    outside = row_bytes / shard.tp if shard.splits_sequence else row_bytes
    norms = model.norms_per_part or 1
    return tuple(
        operator
        for part in parts_of(model)
        for operator in (
            Elementwise("norm", norms * 2 * outside, kernels=norms),
            *_enter(shard, row_bytes),
            *_adapted(part, model, part.operators(model, shard, batch, tokens), shard, adapter),
            *_leave(shard, row_bytes),
            Elementwise("residual", 3 * outside),
        )
    )


def _adapted(
    part: LayerPart,
    model: ModelArchitecture,
    operators: Operators,
    shard: Shard,
    adapter: Adapter | None,
) -> Operators:
    if adapter is None:
        return operators
    kind = "attention" if part is attention_of(model) else "feed-forward"
    if adapter.targets in {kind, "all-linear"}:
        return with_adapters(operators, adapter, shard.value_bytes)
    return frozen(operators)


def _enter(shard: Shard, num_bytes: float) -> Operators:
    return (Collective("all-gather", "all_gather", num_bytes),) if shard.splits_sequence else ()


def _leave(shard: Shard, num_bytes: float) -> Operators:
    if shard.tp == 1:
        return ()
    if shard.splits_sequence:
        return (Collective("reduce-scatter", "reduce_scatter", num_bytes),)
    return (Collective("all-reduce", "all_reduce", num_bytes),)


def embedding_operators(model: ModelArchitecture, shard: Shard, batch: Batch) -> Operators:
    """Return the forward operators of the token embedding on the first pipeline stage."""
    tokens = -(-batch.tokens // shard.cp)
    row_bytes = tokens * model.hidden_size * shard.value_bytes
    return (Elementwise("embedding", 2 * row_bytes), *_leave(shard, row_bytes))


def head_operators(
    model: ModelArchitecture, shard: Shard, batch: Batch, head: Head, *, sampling: bool = False
) -> Operators:
    """Return the forward operators after the last layer: norm, output matrix, log-probabilities.

    A language-model head is split by vocabulary; its softmax runs in fp32 over the local part, with
    three small all-reduces (maximum, sum, the target's logit). When `sampling`, the logits of all
    ranks are gathered instead.
    """
    tokens = -(-batch.head_tokens // shard.cp)
    row_bytes = tokens * model.hidden_size * shard.value_bytes
    norm_bytes = 2 * row_bytes / (shard.tp if shard.splits_sequence else 1)
    norm: Operators = (Elementwise("final norm", norm_bytes), *_enter(shard, row_bytes))
    if head == "scalar":
        return (*norm, Gemm("value head", tokens, model.hidden_size, 1))
    width = -(-model.vocab_size // shard.tp)
    # Logits are read once and widened to fp32, which is written, reduced, and normalised in place.
    softmax = Elementwise(
        "log-probabilities", tokens * width * (shard.value_bytes + 4 * FP32_BYTES), 3
    )
    gemm = Gemm("output matrix", tokens, model.hidden_size, width)
    if shard.tp == 1:
        return (*norm, gemm, softmax)
    if sampling:
        gathered = Collective("logits", "all_gather", tokens * model.vocab_size * shard.value_bytes)
        return (*norm, gemm, gathered, softmax)
    statistics = Collective("vocabulary statistics", "all_reduce", 3 * tokens * FP32_BYTES)
    return (*norm, gemm, softmax, statistics)
