"""Forward passes of micro-batches through a rank's stages, and the pipeline between ranks.

Nothing here learns; `rlplan.executor.learning.train` adds the backward passes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from rlplan.executor.data.batches import PADDING
from rlplan.executor.data.packing import Packed, balanced_rows, pack
from rlplan.executor.weights.shard import ModelShard

# Reads outputs by name out of the head's logits or scalars of a packed row, (1, L, width).
Reader = Callable[[Tensor, Packed], dict[str, Tensor]]


def attention_mask(parts: Tensor) -> Tensor:
    """Return which keys each query attends: earlier ones of its sequence, and itself. (B, 1, T, T)."""
    present = parts != PADDING
    length = parts.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=parts.device).tril()
    # Padding attends itself only: a query without any key has no defined result.
    itself = torch.eye(length, dtype=torch.bool, device=parts.device)
    return ((causal & present[:, None, :]) | itself)[:, None]


def token_positions(parts: Tensor) -> Tensor:
    """Return each token's position in its sequence, from 0; padding counts as 0. Shape (B, T)."""
    return ((parts != PADDING).long().cumsum(dim=1) - 1).clamp(min=0)


def policy_reader(temperature: float, *, entropy: bool = False) -> Reader:
    """Return a reader of the tokens' `log_probs` at a temperature, and the `entropy` if asked. (B, T)."""

    def read(head: Tensor, packed: Packed) -> dict[str, Tensor]:
        logits = head[0].float() / temperature
        chosen = -F.cross_entropy(logits, packed.next_tokens, reduction="none")
        outputs = {"log_probs": packed.predictions_at_tokens(chosen)}
        if entropy:
            log_probs = torch.log_softmax(logits, dim=-1)
            spread = -(log_probs.exp() * log_probs).sum(dim=-1)
            outputs["entropy"] = packed.predictions_at_tokens(spread)
        return outputs

    return read


def read_values(head: Tensor, packed: Packed) -> dict[str, Tensor]:
    """Return the `values` of the states before each token. Shape (B, T)."""
    return {"values": packed.predictions_at_tokens(head[0, :, 0].float())}


def read_scores(head: Tensor, packed: Packed) -> dict[str, Tensor]:
    """Return the `scores` of whole responses, read at their last token. Shape (B,)."""
    return {"scores": packed.whole(head[0, :, 0].float())[packed.last_positions()]}


def pack_for(shard: ModelShard, tokens: Tensor, parts: Tensor, *, length: int = 0) -> Packed:
    """Return padded sequences packed as a shard's layout wants them (`rlplan.executor.data.packing.pack`)."""
    return pack(
        tokens, parts, length=length, multiple=shard.tokens_multiple, ranks=shard.mesh.context
    )


def head_outputs(shard: ModelShard, packed: Packed) -> Tensor:
    """Return the head's outputs for a packed row, on a model of one pipeline stage. (1, L, width)."""
    (stage,) = shard.stages
    with shard.autocast():
        outputs: Tensor = stage(packed.tokens, packed.slots, packed.positions)
    return outputs


def pipeline_forward(
    shard: ModelShard, batches: Sequence[Packed], use: Callable[[Tensor, int], None]
) -> None:
    """Run micro-batches forward; on the rank of the last stage, `use` the head's outputs of each."""
    sending: list[dist.Work] = []
    for number, packed in enumerate(batches):
        outputs = forward_through(
            shard, packed.tokens, packed.slots, packed.positions, sending=sending
        )
        if outputs is not None:
            use(outputs, number)
    for work in sending:
        work.wait()


def forward_through(
    shard: ModelShard,
    tokens: Tensor,
    attention: Any,
    positions: Tensor,
    cache: Any = None,
    *,
    only_last: bool = False,
    sending: list[dist.Work] | None,
) -> Tensor | None:
    """Run one batch through this rank's stages; return the head's outputs on the last stage's rank.

    Args:
        tokens: Shape (B, T).
        sending: Takes what is still on its way to the next stage; None waits for it.
    """
    outputs: Tensor | None = None
    for stage in shard.stages:
        inputs = tokens
        if not stage.first:
            rows, length = tokens.shape[0], tokens.shape[1] // shard.tokens_multiple
            inputs = torch.empty(rows, length, stage.hidden_size, device=tokens.device)
            dist.recv(inputs, shard.mesh.pipeline_rank((shard.mesh.pp - 1) % shard.mesh.pp_size))
        with shard.autocast():
            output: Tensor = stage(inputs, attention, positions, cache, only_last=only_last)
        if stage.last:
            outputs = output
            continue
        target = shard.mesh.pipeline_rank((shard.mesh.pp + 1) % shard.mesh.pp_size)
        work = dist.isend(output.contiguous(), target)
        assert work is not None
        if sending is None:
            work.wait()
        else:
            sending.append(work)
    return outputs


def infer(
    shard: ModelShard,
    tokens: Tensor,
    parts: Tensor,
    output: str,
    *,
    micro_batch: int,
    temperature: float,
) -> Tensor | None:
    """Return one output of all rows: (B, T) per token, or (B,) for scores; None before the last stage.

    Args:
        output: `log_probs`, `values` or `scores`.
        micro_batch: Most sequences of one pass; passes have about equal tokens.
    """
    readers: dict[str, Reader] = {
        "log_probs": policy_reader(temperature),
        "values": read_values,
        "scores": read_scores,
    }
    reader = readers[output]
    passes = _passes(shard, len(tokens), micro_batch)
    shares = balanced_rows(tokens, parts, micro_batch, multiple=passes)
    results: list[Tensor] = []
    with shard.without_gradients():
        batches = [pack_for(shard, tokens[rows], parts[rows]) for rows in shares]
        pipeline_forward(
            shard,
            batches,
            lambda head, number: results.append(reader(head, batches[number])[output]),
        )
        if shard.fully_sharded is not None:
            shard.fully_sharded.reshard()
        if not shard.stages[-1].last:
            return None
        order = torch.tensor([row for rows in shares for row in rows], device=tokens.device)
        joined = torch.cat(results)
        return torch.empty_like(joined).index_copy(0, order, joined)


def _passes(shard: ModelShard, rows: int, micro_batch: int) -> int:
    """Return the number of passes; where ranks communicate in each pass, the largest that any rank needs."""
    passes = max(1, -(-rows // micro_batch))
    meets = shard.fully_sharded is not None or shard.mesh.experts.size > 1
    if not meets or shard.mesh.dp_size == 1:
        return 1
    most = torch.zeros(shard.mesh.copies.size, dtype=torch.long, device=shard.device)
    most[shard.mesh.copies.position] = passes
    return int(shard.mesh.copies.sum(most).max())
