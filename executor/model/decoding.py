"""Decode steps: one token of each sequence through a layer, without what a general layer does besides.

In transformers' classes a decode step takes some hundred and ten calls of torch a layer, most of them about shapes
and types; a small model spends more time in them than in its products. Here it takes forty, on the same modules.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

MISTRAL = "MistralDecoderLayer"
PLAIN_LAYERS = (
    "LlamaDecoderLayer",
    MISTRAL,
    "Qwen2DecoderLayer",
    "Qwen3DecoderLayer",
    "Qwen3MoeDecoderLayer",
)


def decodes_plainly(hidden: Tensor) -> bool:
    """Tell whether a pass is one token of each sequence in fp32 on a CPU, with plain tensors as weights.

    Weights that ranks share out come with hooks, which keep to passes outside inference mode.

    Args:
        hidden: Shape (B, T, hidden).
    """
    return (
        hidden.shape[1] == 1
        and hidden.device.type == "cpu"
        and hidden.dtype == torch.float32
        and torch.is_inference_mode_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


class DecodeStep:
    """Hold what all layers of a step share: angles by position, and which keys are attended.

    Args:
        angles: Cosines and sines of each sequence's position, each (B, 1, head_dim).
        attended: True where a sequence attends a key, (B, 1, 1, T); None: all of them.
    """

    def __init__(self, angles: tuple[Tensor, Tensor], attended: Tensor | None) -> None:
        self._cosines, sines = angles
        self._half = sines.shape[-1] // 2
        # Turning takes (-x2, x1) times the sine: halves swapped, and the first half's sine negated.
        self._sines = torch.cat((-sines[..., : self._half], sines[..., self._half :]), dim=-1)
        self._bias: Tensor | None = None
        if attended is not None:
            self._bias = torch.zeros(attended.shape).masked_fill_(~attended, -torch.inf)[:, 0]

    def turned(self, heads: Tensor) -> Tensor:
        """Return queries or keys turned by their position (rotary embedding). Shape (B, heads, head_dim)."""
        return heads * self._cosines + heads.roll(self._half, -1) * self._sines

    def attention(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Return the attention's output (B, heads x head_dim) of one query a sequence.

        The heads that share keys and values are the rows of one product with them.

        Args:
            query: Shape (B, heads, head_dim).
            keys: Shape (B, key-value heads, T, head_dim).
            values: Shape (B, key-value heads, T, head_dim).
        """
        batch, heads, width = query.shape
        queries = (query * scaling).view(batch * keys.shape[1], -1, width)
        weights = torch.bmm(queries, keys.flatten(0, 1).transpose(1, 2))
        if self._bias is not None:
            weights = (weights.view(batch, heads, -1) + self._bias).view(weights.shape)
        return torch.bmm(weights.softmax(dim=-1), values.flatten(0, 1)).view(batch, heads * width)


def decoded(layers: Sequence[Any], hidden: Tensor, step: DecodeStep, cache: Any) -> Tensor:
    """Return hidden states behind layers of grouped attention and gated MLPs. Shape (B, 1, hidden).

    Args:
        hidden: Of one token of each sequence. Shape (B, 1, hidden).
        cache: Keys and values of earlier tokens, which the pass extends.
    """
    rows = hidden[:, 0]
    for layer in layers:
        attention, mlp = layer.self_attn, layer.mlp
        shape = (len(rows), -1, attention.head_dim)
        normed = _normed(rows, layer.input_layernorm)
        query, key, value = (
            project(normed).view(shape)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if hasattr(attention, "q_norm"):
            query, key = _normed(query, attention.q_norm), _normed(key, attention.k_norm)
        keys, values = cache.update(
            step.turned(key).unsqueeze(2), value.unsqueeze(2), attention.layer_idx
        )
        read = step.attention(step.turned(query), keys, values, attention.scaling)
        rows = rows + attention.o_proj(read)
        normed = _normed(rows, layer.post_attention_layernorm)
        rows = rows + mlp.down_proj(mlp.act_fn(mlp.gate_proj(normed)) * mlp.up_proj(normed))
    return rows.unsqueeze(1)


def is_plain(layer: nn.Module) -> bool:
    """Tell whether a layer is grouped attention to all keys and a gated MLP, each behind a norm, and nothing else."""
    if type(layer).__name__ not in PLAIN_LAYERS or hasattr(layer.mlp, "experts"):
        return False
    attention: Any = layer.self_attn
    window = getattr(attention, "sliding_window", None)
    if type(layer).__name__ == MISTRAL:  # whose layers ask the configuration
        window = attention.config.sliding_window
    return window is None


def _normed(rows: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(rows, norm.weight.shape, norm.weight, norm.variance_epsilon)
