"""Passes over whole sequences, with outputs aligned to tokens.

Entry t of an output speaks of the token at t and of the state before it, so it comes from the
hidden state at t - 1; entry 0 is zero. Sequences are padded on the left of the prompt and on the
right of the response.
"""

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from executor.batches import PADDING
from executor.shard import ModelShard


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


def hidden_states(shard: ModelShard, tokens: Tensor, parts: Tensor) -> Tensor:
    """Return the last hidden states of whole sequences. Shape (B, T, hidden)."""
    return shard.model.hidden(tokens, attention_mask(parts), token_positions(parts))


def policy_outputs(
    shard: ModelShard, tokens: Tensor, parts: Tensor, temperature: float, *, entropy: bool = False
) -> dict[str, Tensor]:
    """Return `log_probs` of the tokens at a temperature, and the `entropy` if asked. (B, T)."""
    with shard.autocast():
        logits = shard.model.head(hidden_states(shard, tokens, parts)[:, :-1])
    logits = logits.float() / temperature
    flat = logits.flatten(0, 1)
    chosen = -F.cross_entropy(flat, tokens[:, 1:].flatten(), reduction="none")
    outputs = {"log_probs": aligned(chosen.view(logits.shape[:2]))}
    if entropy:
        log_probs = torch.log_softmax(logits, dim=-1)
        outputs["entropy"] = aligned(-(log_probs.exp() * log_probs).sum(dim=-1))
    return outputs


def value_outputs(shard: ModelShard, tokens: Tensor, parts: Tensor) -> dict[str, Tensor]:
    """Return the `values` of the states before each token. Shape (B, T)."""
    with shard.autocast():
        values = shard.model.head(hidden_states(shard, tokens, parts)[:, :-1])
    return {"values": aligned(values.float().squeeze(-1))}


def score_outputs(shard: ModelShard, tokens: Tensor, parts: Tensor) -> dict[str, Tensor]:
    """Return the `scores` of whole responses, read at their last token. Shape (B,)."""
    with shard.autocast():
        scores = shard.model.head(hidden_states(shard, tokens, parts))
    places = torch.arange(parts.shape[1], device=parts.device)
    last = (places * (parts != PADDING)).amax(dim=1, keepdim=True)
    return {"scores": scores.float().squeeze(-1).gather(1, last).squeeze(1)}


def aligned(predictions: Tensor) -> Tensor:
    """Return what positions 0 .. T-2 say of the next token, at that token's place. (B, T)."""
    return F.pad(predictions, (1, 0))
