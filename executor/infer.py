"""Forward-only tasks, micro-batch by micro-batch."""

from collections.abc import Callable

import torch
from torch import Tensor

from executor.forward import policy_outputs, score_outputs, value_outputs
from executor.shard import ModelShard

Pass = Callable[[ModelShard, Tensor, Tensor], dict[str, Tensor]]


def infer(
    shard: ModelShard,
    tokens: Tensor,
    parts: Tensor,
    output: str,
    *,
    micro_batch: int,
    temperature: float,
) -> Tensor:
    """Return one output of all rows: (B, T) per token, or (B,) for scores.

    Args:
        output: Data key of the task: `values`, `reference_log_probs`, `log_probs` or `scores`.
        micro_batch: Sequences of one pass.
    """
    column, run = _pass_of(output, temperature)
    with torch.inference_mode():
        results = [
            run(shard, tokens[start : start + micro_batch], parts[start : start + micro_batch])
            for start in range(0, len(tokens), micro_batch)
        ]
        return torch.cat([result[column] for result in results])


def _pass_of(output: str, temperature: float) -> tuple[str, Pass]:
    if output.endswith("log_probs"):
        return "log_probs", lambda shard, tokens, parts: policy_outputs(
            shard, tokens, parts, temperature
        )
    return {"values": ("values", value_outputs), "scores": ("scores", score_outputs)}[output]
