"""Log-probabilities, values and scores of whole sequences, aligned to tokens.

Entry t of an output belongs to the token at t and to the state before it, so it is read at t - 1;
a sequence's first token has nothing before it, and its entry is zero, as that of padding.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from rlplan.executor.data.batches import PADDING
from rlplan.executor.data.packing import Packed, pack
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
