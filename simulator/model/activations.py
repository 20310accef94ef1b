"""Bytes of activations and logits on one device.

Korthikanti et al. 2022 (arXiv:2205.05198), section 4, equations 1 to 6, adapted: without dropout
(RL fine-tuning has none), with grouped KV heads, gated MLPs and experts, and with fused attention,
which keeps one fp32 statistic per query in place of the scores. For their GPT layer (MHA, 4 h wide
GELU MLP, 16 bits) the sum is their 34 s b h less the 2 s b h of dropout masks, and their 5 a s^2 b
less the 3 a s^2 b of dropout's mask and output.
"""

from functools import lru_cache

from rlplan.model import ModelArchitecture
from rlplan.operators import FP32_BYTES, Shard
from rlplan.parts import parts_of
from rlplan.plan import Recompute


@lru_cache(maxsize=65536)
def layer_activation_bytes(
    model: ModelArchitecture,
    shard: Shard,
    sequences: int,
    sequence_tokens: int,
    recompute: Recompute,
    *,
    fused_attention: bool,
    shared_tokens: int = 0,
) -> int:
    """Return the bytes that one layer keeps of one micro-batch for its backward pass.

    `none` keeps the inputs of both norms, of all matrix products, of attention and of the MLP's
    activation; `selective` makes the outputs of norms and activation (and unfused scores) again,
    `full` everything but the layer's input.

    Args:
        shared_tokens: Tokens of prompts that samples share, so that the micro-batch computes so many
            fewer. Attention spreads queries, keys and values to all sequences, and keeps them so.
    """
    spread = -(-sequences * sequence_tokens // shard.cp)
    tokens = -(-(sequences * sequence_tokens - shared_tokens) // shard.cp)
    row_bytes = tokens * model.hidden_size * shard.value_bytes
    outside = row_bytes / shard.tp if shard.splits_sequence else row_bytes
    if recompute == "alternate":
        kinds: tuple[Recompute, ...] = ("none", "full")
        both = (
            layer_activation_bytes(
                model,
                shard,
                sequences,
                sequence_tokens,
                kind,
                fused_attention=fused_attention,
                shared_tokens=shared_tokens,
            )
            for kind in kinds
        )
        return sum(both) // 2
    if recompute == "full":
        return round(outside)
    parts = parts_of(model)
    kept = sum(
        part.kept_bytes(
            model,
            shard,
            tokens,
            spread,
            sequence_tokens,
            fused_attention=fused_attention,
            keeps_products=recompute == "none",
        )
        for part in parts
    )
    rows = len(parts) * (2 if recompute == "none" else 1)
    return round(rows * outside + kept)


def logits_bytes(
    model: ModelArchitecture, tp: int, tokens: int, value_bytes: int, *, backward: bool
) -> int:
    """Return the bytes of a language-model head's output for `tokens` tokens.

    The logits as they are computed and their fp32 softmax; in training its fp32 gradient too.
    """
    entries = tokens * -(-model.vocab_size // tp)
    return entries * (value_bytes + FP32_BYTES * (2 if backward else 1))
