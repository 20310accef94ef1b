"""What some families' attention has beside a causal mask: windows of the last keys, and logits that are capped."""

from typing import Any

import torch
from torch import Tensor, nn


def within_window(
    window: int | None, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return keys, values and the mask of a layer whose queries attend the last keys only, themselves included.

    Without a mask the queries are the last ones of their sequences, and causal.

    Args:
        window: Keys that a query attends at most; None: all of them.
        query: Shape (B, heads, T, head_dim).
        key, value: Shape (B, key-value heads, keys, head_dim).
        mask: True where a query attends a key. Shape (B, 1, T, keys).
    """
    queries, keys = query.shape[2], key.shape[2]
    if window is None or keys <= window:
        return key, value, mask
    if mask is None and queries == 1:
        return key[:, :, -window:], value[:, :, -window:], None
    places = torch.arange(keys, device=key.device)
    if mask is None:
        last = places[keys - queries :, None]
        return key, value, ((places <= last) & (places > last - window))[None, None]
    # A query's own key is the last one that it attends.
    last = torch.where(mask, places, -1).amax(dim=-1, keepdim=True)
    return key, value, mask & (places > last - window)


def attend_capped(
    _: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    softcap: float,
    **_unused: Any,
) -> tuple[Tensor, None]:
    """Return attention (B, T, heads, head_dim) whose logits a tangent keeps within a cap (Gemma 2, arXiv:2408.00118, eq. 1).

    Args:
        query: Shape (B, heads, T, head_dim).
        key, value: Shape (B, key-value heads, keys, head_dim).
        attention_mask: True where a query attends a key; None: the queries are the last keys', and causal.
    """
    batch, heads, queries, width = query.shape
    keys, together = key.shape[2], key.shape[1]
    if attention_mask is None:
        places = torch.arange(keys, device=key.device)
        attention_mask = (places <= places[keys - queries :, None])[None, None]
    grouped = query.view(batch, together, heads // together, queries, width)
    logits = grouped @ key[:, :, None].transpose(3, 4) * scaling
    logits = softcap * torch.tanh(logits / softcap)
    logits = logits.masked_fill(~attention_mask[:, :, None], -torch.inf)
    weights = logits.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    output = (weights @ value[:, :, None]).view(batch, heads, queries, width)
    return output.transpose(1, 2).contiguous(), None
