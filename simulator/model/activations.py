"""Bytes of activations and logits on one device.

Korthikanti et al. 2022 (arXiv:2205.05198), section 4, equations 1 to 6, adapted: without dropout
(RL fine-tuning has none), with grouped KV heads, gated MLPs and experts, and with fused attention,
which keeps one fp32 statistic per query in place of the scores. For their GPT layer (MHA, 4 h wide
GELU MLP, 16 bits) the sum is their 34 s b h less the 2 s b h of dropout masks, and their 5 a s^2 b
less the 3 a s^2 b of dropout's mask and output.
"""

from functools import lru_cache

from rlplan.models.model import ModelArchitecture
from rlplan.models.operators import FP32_BYTES, KeptBatch
from rlplan.parts import parts_of
from rlplan.plan import Recompute
from rlplan.sheets.hardware import USUAL_MEMORY, LogitTensors, TrainerMemory

OFFLOADED = "full-offload"
# What `alternate` keeps of every other layer, and of those between.
ALTERNATING: tuple[Recompute, ...] = ("none", "full")
# Gradients of a layer's output and input, beside those of what its parts keep.
GRADIENT_ROWS = 2


@lru_cache(maxsize=65536)
def layer_activation_bytes(model: ModelArchitecture, batch: KeptBatch, recompute: Recompute) -> int:
    """Return the bytes that one layer keeps of one micro-batch for its backward pass.

    `none` keeps the inputs of both norms, of all matrix products, of attention and of the MLP's
    activation; `selective` makes the outputs of norms and activation (and unfused scores) again,
    `full` everything but the layer's input, which `full-offload` keeps in host memory.
    """
    if recompute == OFFLOADED:
        return 0
    if recompute == "alternate":
        return sum(layer_activation_bytes(model, batch, kind) for kind in ALTERNATING) // 2
    row = _row_bytes(model, batch)
    if recompute == "full":
        return round(row)
    keeps_products = recompute == "none"
    parts = _part_bytes(model, batch, keeps_products=keeps_products)
    rows = len(parts) * (2 if keeps_products else 1)
    return round(rows * row + sum(parts))


@lru_cache(maxsize=65536)
def layer_peak_bytes(model: ModelArchitecture, batch: KeptBatch) -> int:
    """Return the most bytes that a layer holds of one micro-batch while it runs backwards.

    All that is kept where nothing is computed again, and gradients: of the layer's output and input,
    and of the part that keeps most. Each tensor that a part keeps has a gradient of its size, which is
    gone when the next part's come.
    """
    row, parts = _row_bytes(model, batch), _part_bytes(model, batch, keeps_products=True)
    return round((2 * len(parts) + GRADIENT_ROWS) * row + sum(parts) + max(parts))


def _row_bytes(model: ModelArchitecture, batch: KeptBatch) -> float:
    """Return the bytes of hidden states between the parts of a layer."""
    shard = batch.shard
    row_bytes = batch.tokens * model.hidden_size * shard.value_bytes
    return row_bytes / shard.tp if shard.splits_sequence else row_bytes


def _part_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> list[int]:
    return [
        part.kept_bytes(model, batch, keeps_products=keeps_products) for part in parts_of(model)
    ]


def logits_bytes(
    model: ModelArchitecture,
    tp: int,
    tokens: int,
    value_bytes: int,
    memory: TrainerMemory = USUAL_MEMORY,
    way: LogitTensors | None = None,
    *,
    backward: bool,
) -> int:
    """Return the bytes of a language-model head's output for `tokens` tokens.

    The logits as they are computed and their fp32 softmax; in training its gradient too, and as many
    copies of each as the engine holds at a time, of as many logits as it makes at a time.

    Args:
        way: What the way in which log-probabilities are made holds; None counts by the engine's copies.
    """
    width = -(-model.vocab_size // tp)
    if way is not None:
        return way.logits_bytes(tokens, width, trains=backward)
    if not backward:
        return tokens * width * (value_bytes + FP32_BYTES)
    copies = memory.logit_copies * value_bytes + memory.fp32_logit_copies * FP32_BYTES
    return min(memory.head_entries or width, width) * tokens * copies
