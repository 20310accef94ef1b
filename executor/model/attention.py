"""Causal attention over packed sequences, as transformers' layers call it.

Queries, keys and values of a packed row are spread over one row per sequence, padded on the right:
causal attention needs no mask then, and fused kernels apply. Context-parallel ranks each have some
of the queries; they gather all keys and values, and a mask says which of them a query comes after:
block by block of queries, each with the keys that any of its queries sees.
Where a device has kernels for sequences of unlike lengths, packed rows go through these instead, as they are
(`rlplan.executor.model.attention`). With a key-value cache the layers pass a plain mask on instead, or none: on a CPU a decode step is two
plain products then.
"""

import inspect
import logging
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlplan.executor.data.batches import PADDING, PROMPT, RESPONSE
from rlplan.executor.data.packing import Runs, SequenceSlots, pack
from rlplan.executor.parallel.context import gather_rows
from rlplan.executor.parallel.meshes import RankGroup

Kernel = Callable[..., Tensor]
# Says what an attention returns of a layer, query, key, value and slots, as transformers' layers call it.
Attention = Callable[..., tuple[Tensor, None]]

# Device types with such kernels, and their number format (`rlplan.executor.weights.shard.ModelShard.autocast`).
DEVICES, KIND = ("cuda",), torch.bfloat16
# Keys of a model's configuration that the kernels do not support, and the values with which such a key is off.
UNKNOWN = ("attn_logit_softcapping", "attention_dropout", "use_bidirectional_attention")
OFF = (None, False, 0.0)
# Of the trial: response tokens of the samples of each prompt, the prompts' tokens, and a window.
TRIAL_PROMPTS = ((5, (3, 7)), (2, (9,)))
TRIAL_WINDOW, TRIAL_KEY_HEADS = 4, 2
# Rounding to bf16 moves outputs and gradients by half a percent, a wrong mask by tens.
TRIAL_DISTANCE = 0.03

_log = logging.getLogger(__name__)


def varlen_kernel() -> Kernel:
    """Return PyTorch's kernel."""
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415  # only where a device has it

    kernel: Any = varlen_attn
    return kernel  # type: ignore[no-any-return]


def attend_by_kernel(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slots: SequenceSlots,
    *,
    scaling: float,
    window: int | None = None,
) -> Tensor:
    """Return causal attention's output in a packed row, zero where its filler is. (1, L, heads, head_dim).

    Args:
        kernel: PyTorch's `varlen_attn`, or what has its signature.
        query: Shape (1, heads, L, head_dim).
        key, value: Shape (1, key-value heads, L, head_dim).
        slots: The packed sequences, of which this rank has all tokens.
        window: Keys that a query attends at most, itself included; None: all of them.
    """
    runs = slots.runs
    assert runs is not None, "other ranks have some of the tokens"
    kind = torch.get_autocast_dtype(query.device.type)
    if not torch.is_autocast_enabled(query.device.type):
        kind = query.dtype
    length = query.shape[2]
    queries = query[0].transpose(0, 1)[: runs.filled].to(kind)
    # Cast last, so that gradients of what sequences share are summed in the format that they had.
    keys, values = (_of_each(part[0].transpose(0, 1), runs).to(kind) for part in (key, value))
    settings: dict[str, Any] = {"scale": scaling}
    groups = queries.shape[1] // keys.shape[1]
    if groups > 1 and _knows_groups(kernel):
        settings["enable_gqa"] = True
    elif groups > 1:
        keys, values = (part.repeat_interleave(groups, dim=1) for part in (keys, values))
    # A kernel's window counts the keys before a query's own.
    before = -1 if window is None or window >= slots.width else window - 1
    output = kernel(
        queries,
        keys,
        values,
        runs.queries,
        runs.keys,
        slots.width,
        slots.width,
        window_size=(before, 0),
        **settings,
    )
    filler = length - runs.filled
    return (F.pad(output, (0, 0, 0, 0, 0, filler)) if filler else output)[None]


def _of_each(packed: Tensor, runs: Runs) -> Tensor:
    """Return the keys or values of all sequences one after another. Shape (n, heads, head_dim)."""
    return packed[: runs.filled] if runs.found is None else packed.index_select(0, runs.found)


@cache
def _knows_groups(kernel: Kernel) -> bool:
    """Tell whether a kernel has a switch for grouped queries, with fewer heads of keys (since PyTorch 2.12)."""
    return "enable_gqa" in inspect.signature(kernel).parameters


def takes_kernel(config: Any, device: torch.device, usual: Attention) -> bool:
    """Tell whether a model's layers can use the variable-length kernel for packed sequences, in passes in bf16.

    The device must have a kernel that agrees with the usual attention in a trial of a few tokens with the model's heads.
    So old GPUs, and head sizes or windows that the kernel lacks, use the usual attention.

    Args:
        config: The model's configuration (`rlplan.executor.model.building`).
        usual: The attention without the kernel.
    """
    if device.type not in DEVICES or any(
        getattr(config, name, None) not in OFF for name in UNKNOWN
    ):
        return False
    groups = config.num_attention_heads // config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    windows = (None,) if getattr(config, "sliding_window", None) is None else (None, TRIAL_WINDOW)
    return all(_agrees(varlen_kernel(), usual, device, groups, width, each) for each in windows)


@cache
def _agrees(
    kernel: Kernel,
    usual: Attention,
    device: torch.device,
    groups: int,
    head_dim: int,
    window: int | None,
) -> bool:
    """Tell whether the kernel has the outputs and gradients of the usual attention, on sequences that share prompts."""
    slots = _trial_slots(device)
    generator = torch.Generator().manual_seed(0)

    def drawn(heads: int) -> Tensor:
        shape = (1, heads, len(slots.places), head_dim)
        return torch.randn(shape, generator=generator).to(device, KIND)

    inputs = [drawn(TRIAL_KEY_HEADS * groups), drawn(TRIAL_KEY_HEADS), drawn(TRIAL_KEY_HEADS)]
    wanted = drawn(TRIAL_KEY_HEADS * groups).transpose(1, 2)
    scaling = head_dim**-0.5
    layer = SimpleNamespace(num_key_value_groups=groups, is_causal=True, training=True)

    def by_usual(*parts: Tensor) -> Tensor:
        whole = (part.float() for part in parts)
        return usual(layer, *whole, slots, scaling=scaling, dropout=0.0, sliding_window=window)[0]

    def by_kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend_by_kernel(kernel, query, key, value, slots, scaling=scaling, window=window)

    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        expected = _with_gradients(by_usual, inputs, wanted)
        try:
            found = _with_gradients(by_kernel, inputs, wanted)
        except (RuntimeError, TypeError, ValueError) as error:
            problem = " ".join(str(error).split())
        else:
            distances = [
                float((mine - theirs).norm() / theirs.norm())
                for mine, theirs in zip(found, expected, strict=True)
            ]
            if max(distances) < TRIAL_DISTANCE:
                return True
            problem = f"it is off by {max(distances):.2g} of what they are"
    _log.warning(
        "attention goes without the kernel for unlike lengths on %s (heads of %d, window %s): %s",
        device, head_dim, window, problem,
    )  # fmt: skip
    return False


def _with_gradients(
    attend: Callable[..., Tensor], inputs: list[Tensor], wanted: Tensor
) -> list[Tensor]:
    """Return outputs and the inputs' gradients, in fp32."""
    parts = [part.clone().requires_grad_() for part in inputs]
    output = attend(*parts)
    (output * wanted).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [part.grad for part in parts if part.grad is not None]
    return [made.detach().float() for made in (output, *gradients)]


def _trial_slots(device: torch.device) -> SequenceSlots:
    """Return where some sequences stand in a row without filler; some of them share a prompt."""
    rows = [
        (prompt, made, at)
        for at, (prompt, all_made) in enumerate(TRIAL_PROMPTS)
        for made in all_made
    ]
    prompts, responses = max(row[0] for row in rows), max(row[1] for row in rows)
    parts = torch.full((len(rows), prompts + responses), PADDING, dtype=torch.int8)
    tokens = torch.zeros(parts.shape, dtype=torch.long)
    for row, (prompt, made, at) in enumerate(rows):
        parts[row, prompts - prompt : prompts] = PROMPT
        parts[row, prompts : prompts + made] = RESPONSE
        tokens[row] = at
    return pack(tokens.to(device), parts.to(device)).slots


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


# Names in configurations of transformers, by whether the kernel computes it, and whether the backward pass recomputes it.
NAMES = {
    (False, False): "rlplan",
    (False, True): "rlplan-recomputed",
    (True, False): "rlplan-varlen",
    (True, True): "rlplan-varlen-recomputed",
}


def attention_of(config: Any, device: torch.device | None, *, recomputed: bool) -> str:
    """Return the name of the attention that a model of such a configuration is built with.

    Args:
        device: Device whose kernels are used in bf16; None for passes in fp32, on any device.
        recomputed: Whether the backward pass recomputes it.
    """
    _register()
    by_kernel = device is not None and takes_kernel(config, device, packed_attention)
    return NAMES[by_kernel, recomputed]


def _register() -> None:
    """Register all kinds of attention with transformers, whose configurations name them."""
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
