"""Forward-only tasks, micro-batch by micro-batch."""

import torch
from torch import Tensor

from rlplan.executor.data.token_balancing import balanced_rows
from rlplan.executor.passes.forward import Reader, pack_for, policy_reader, read_scores, read_values
from rlplan.executor.passes.pipeline import pipeline_forward
from rlplan.executor.weights.shard import ModelShard


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
    """Return the number of passes: as many as any rank needs where ranks meet in each of them."""
    passes = max(1, -(-rows // micro_batch))
    meets = shard.fully_sharded is not None or shard.mesh.experts.size > 1
    if not meets or shard.mesh.dp_size == 1:
        return 1
    most = torch.zeros(shard.mesh.copies.size, dtype=torch.long, device=shard.device)
    most[shard.mesh.copies.position] = passes
    return int(shard.mesh.copies.sum(most).max())
