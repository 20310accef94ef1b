"""Attention over packed sequences by PyTorch's kernels for sequences of unlike lengths (`torch.nn.attention.varlen`).

Nothing is padded, nothing is masked, and what samples of one prompt share is computed once: a sequence's own
queries are its last ones, and attend all its keys. Whether a model's layers attend so is decided once, when it
is built: `takes_kernel`.
"""

import inspect
import logging
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from executor.data.batches import PADDING, PROMPT, RESPONSE
from executor.data.packing import Runs, SequenceSlots, pack

Kernel = Callable[..., Tensor]
# Says what an attention returns of a layer, query, key, value and slots, as transformers' layers call it.
Attention = Callable[..., tuple[Tensor, None]]

# Where there are such kernels, and what they multiply in (`executor.weights.shard.ModelShard.autocast`).
DEVICES, KIND = ("cuda",), torch.bfloat16
# What a model's configuration says that the kernels do not have; each is off where it is none of these.
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
    """Tell whether a kernel takes fewer heads of keys than of queries by a switch of its own: since PyTorch 2.12."""
    return "enable_gqa" in inspect.signature(kernel).parameters


def takes_kernel(config: Any, device: torch.device, usual: Attention) -> bool:
    """Tell whether the layers of a model attend packed sequences by the kernel, in passes in bf16.

    They do where a device has one that says the same as the usual attention of the model's heads, in a trial
    of a few tokens: so a GPU too old, a head size or a window that it lacks goes the usual way.

    Args:
        config: The model's configuration (`executor.model.families`).
        usual: What attends where there is no kernel.
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
