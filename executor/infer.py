"""Forward-only tasks, micro-batch by micro-batch."""

import torch
from torch import Tensor

from executor.batches import PADDING
from executor.forward import Reader, policy_reader, read_scores, read_values
from executor.fully_sharded import FullyShardedParameters
from executor.packing import balanced_rows, pack
from executor.pipeline import pipeline_forward
from executor.shard import ModelShard


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
        output: Data key of the task: `values`, `reference_log_probs`, `log_probs` or `scores`.
        micro_batch: Most sequences of one pass; passes have about equal tokens.
    """
    column, reader = _reader_of(output, temperature)
    shares = balanced_rows((parts != PADDING).sum(dim=1).tolist(), micro_batch)
    results: list[Tensor] = []
    with shard.without_gradients():
        batches = [
            pack(tokens[rows], parts[rows], multiple=shard.tokens_multiple) for rows in shares
        ]
        pipeline_forward(
            shard,
            batches,
            lambda said, number: results.append(reader(said, batches[number])[column]),
        )
        if isinstance(shard.flat, FullyShardedParameters):
            shard.flat.rest()
        if not shard.stages[-1].last:
            return None
        order = torch.tensor([row for rows in shares for row in rows], device=tokens.device)
        joined = torch.cat(results)
        return torch.empty_like(joined).index_copy(0, order, joined)


def _reader_of(output: str, temperature: float) -> tuple[str, Reader]:
    if output.endswith("log_probs"):
        return "log_probs", policy_reader(temperature)
    return {"values": ("values", read_values), "scores": ("scores", read_scores)}[output]
