"""Causal attention over packed sequences, as transformers' layers call it.

Queries, keys and values of a packed row are spread over one row per sequence, padded on the right:
causal attention needs no mask then, and fused kernels apply. Context-parallel ranks each have some
of the queries; they gather all keys and values, and a mask says which of them a query comes after:
block by block of queries, each with the keys that any of its queries sees.
Where a device has kernels for sequences of unlike lengths, packed rows go through these instead, as they are
(`executor.model.varlen`). With a key-value cache the layers pass a plain mask on instead, or none: on a CPU a decode step is two
plain products then.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from executor.data.packing import SequenceSlots
from executor.model.varlen import attend_by_kernel, takes_kernel, varlen_kernel
from executor.model.windows import attend_capped, within_window
from executor.parallel.context import gather_rows
from executor.parallel.meshes import RankGroup

# What configurations of transformers call it: by what computes it, and whether the backward pass computes it again.
NAMES = {
    (False, False): "rlplan",
    (False, True): "rlplan-recomputed",
    (True, False): "rlplan-varlen",
    (True, True): "rlplan-varlen-recomputed",
}


def attention_of(config: Any, device: torch.device | None, *, recomputed: bool) -> str:
    """Return the name of the attention that a model of such a configuration is built with.

    Args:
        device: Whose kernels its passes in bf16 take, if it has any; None: passes in fp32, on any device.
        recomputed: Whether the backward pass computes it again.
    """
    _register()
    by_kernel = device is not None and takes_kernel(config, device, packed_attention)
    return NAMES[by_kernel, recomputed]


def _register() -> None:
    """Make all kinds of attention known to transformers, whose configs name them."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: PLC0415  # slow import

    for (by_kernel, recomputed), name in NAMES.items():
        attend = kernel_attention if by_kernel else packed_attention
        kept = partial(recomputed_attention, attend) if recomputed else attend
        ALL_ATTENTION_FUNCTIONS.register(name, kept)


def kernel_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | SequenceSlots | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Return the same as `packed_attention`; packed rows that are whole go through the kernel for unlike lengths."""
    if not isinstance(attention_mask, SequenceSlots) or attention_mask.runs is None:
        return packed_attention(module, query, key, value, attention_mask, **settings)
    output = attend_by_kernel(
        varlen_kernel(),
        query,
        key,
        value,
        attention_mask,
        scaling=settings["scaling"],
        window=settings.get("sliding_window"),
    )
    return output, None


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | SequenceSlots | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Return the attention's output (1, L, heads, head_dim), or (B, T, ...) under a plain mask.

    Args:
        query: Shape (1, heads, L, head_dim), or (B, heads, T, head_dim).
        attention_mask: The packed sequences, or True where a query attends a key.
        settings: The layer's scaling and what else it passes on.
    """
    window = settings.pop("sliding_window", None)
    attend = _attending(settings)
    if not isinstance(attention_mask, SequenceSlots):
        key, value, mask = within_window(window, query, key, value, attention_mask)
        one_query = query.shape[2] == 1 and query.device.type == "cpu"
        if one_query and mask is None and settings.get("softcap") is None:
            return attention_of_one_query(query, key, value, settings["scaling"]), None
        attended: tuple[Tensor, None] = attend(module, query, key, value, mask, **settings)
        return attended
    slots = attention_mask
    if slots.stripe is not None:
        stripe = slots.stripe
        keys, values = _gathered(key, value, slots, stripe.ranks)
        slots = stripe.slots
        queries = _spread(query, slots)
        blocks = []
        for rows, reach in stripe.blocks:
            seen, block = stripe.seen[:, :, rows, :reach], queries[:, :, rows]
            seen_of = within_window(window, block, keys[:, :, :reach], values[:, :, :reach], seen)
            blocks.append(attend(module, block, *seen_of, **settings)[0])
        output = torch.cat(blocks, dim=1) if len(blocks) > 1 else blocks[0]
    else:
        queries, keys, values = (_spread(part, slots) for part in (query, key, value))
        seen_of = within_window(window, queries, keys, values, None)
        output, _ = attend(module, queries, *seen_of, **settings)
    together = output.reshape(1, slots.count * slots.width, *output.shape[2:])
    return (together if slots.dense else together[:, slots.places]), None


def _attending(settings: dict[str, Any]) -> Callable[..., tuple[Tensor, None]]:
    """Return what attends in a layer of such settings."""
    from transformers.integrations.sdpa_attention import (  # noqa: PLC0415  # slow import
        sdpa_attention_forward,
    )

    plain: Callable[..., tuple[Tensor, None]] = sdpa_attention_forward
    return plain if settings.get("softcap") is None else attend_capped


def attention_of_one_query(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Return the attention's output (B, 1, heads, head_dim) of one query a sequence, to all its keys.

    The heads that share keys and values are the rows of one product with them. Fused kernels on CPUs
    take rows by blocks, of which one query fills little, and repeat shared keys.

    Args:
        query: Shape (B, heads, 1, head_dim).
        key: Shape (B, key-value heads, T, head_dim).
        value: Shape (B, key-value heads, T, head_dim).
    """
    batch, heads, _, width = query.shape
    together = key.shape[1]
    queries = query.reshape(batch, together, heads // together, width) * scaling
    weights = (queries @ key.transpose(2, 3)).softmax(dim=-1, dtype=torch.float32)
    return (weights.to(value.dtype) @ value).reshape(batch, 1, heads, width)


def recomputed_attention(
    attend: Callable[..., tuple[Tensor, None]], *inputs: Any, **settings: Any
) -> tuple[Tensor, None]:
    """Return what `attend` does, computed again in the backward pass.

    Selective recomputation: what is large for its arithmetic (Korthikanti et al. 2022,
    arXiv:2205.05198, section 5).
    """
    if not torch.is_grad_enabled():
        return attend(*inputs, **settings)
    result: tuple[Tensor, None] = checkpoint(
        attend, *inputs, use_reentrant=False, preserve_rng_state=False, **settings
    )
    return result


def _gathered(
    key: Tensor, value: Tensor, slots: SequenceSlots, ranks: RankGroup
) -> tuple[Tensor, Tensor]:
    """Return the keys and values of all context-parallel ranks, in one exchange. (B, heads, W, head_dim)."""
    mine = torch.cat([key, value], dim=1)[0].transpose(0, 1)
    together = _spread(gather_rows(mine, ranks).transpose(0, 1)[None], slots)
    keys, values = together.chunk(2, dim=1)
    return keys, values


def _spread(packed: Tensor, slots: SequenceSlots) -> Tensor:
    """Return (1, heads, L, head_dim) as (B, heads, W, head_dim)."""
    rows = packed.transpose(1, 2)[0]
    taken = rows if slots.dense else rows[slots.taken]
    return taken.view(slots.count, slots.width, *rows.shape[1:]).transpose(1, 2)
