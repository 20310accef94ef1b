"""Projections that a family of models stores fused in one matrix, as separate matrices: tensor parallelism cuts each.

Phi 3 has queries, keys and values in one matrix, and the gate and up projections of its MLP in another. A
tensor-parallel rank holds some rows of each projection; in the fused matrix these rows are not contiguous.
"""

import re
from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

# Published matrices that fuse several projections, with the projections in order.
FUSED_PROJECTIONS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
APART = re.compile(
    r"(?P<joined>qkv_proj|gate_up_proj)\.(?P<part>\w+_proj)\.(?P<matrix>(lora_[AB]\.)?weight)$"
)
FIRST = "lora_A.weight"


class ConcatenatedLinears(nn.Module):
    """Apply several linear layers to one input and concatenate their outputs."""

    def __init__(self, width: int, rows: dict[str, int]) -> None:
        super().__init__()
        for name, count in rows.items():
            self.add_module(name, nn.Linear(width, count, bias=False))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return all outputs. (..., rows of this rank)."""
        return torch.cat([each(inputs) for each in self.children()], dim=-1)


def split_fused_projections(backbone: nn.Module) -> None:
    """Replace the fused projections of a transformer by one matrix each, in place."""
    config: Any = backbone.config
    for module in list(backbone.modules()):
        if isinstance(getattr(module, "qkv_proj", None), nn.Linear):
            heads = module.head_dim
            keys = config.num_key_value_heads * heads
            rows = {"q_proj": config.num_attention_heads * heads, "k_proj": keys, "v_proj": keys}
            module.qkv_proj = ConcatenatedLinears(config.hidden_size, rows)
        if isinstance(getattr(module, "gate_up_proj", None), nn.Linear):
            width = config.intermediate_size
            module.gate_up_proj = ConcatenatedLinears(
                config.hidden_size, {"gate_proj": width, "up_proj": width}
            )


def keep_heads(stage: nn.Module, ranks: int) -> None:
    """Tell attention with fused projections how many heads one of `ranks` tensor-parallel ranks has."""
    for module in stage.modules():
        if not isinstance(getattr(module, "qkv_proj", None), ConcatenatedLinears):
            continue
        attention: Any = module
        attention.config = copy(attention.config)
        attention.config.num_attention_heads //= ranks
        attention.num_key_value_heads //= ranks


def fuse_projections(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights by name, separate projections concatenated to the fused matrix of the published format.

    Adapters of separate projections become one adapter whose rank is the sum of theirs (B is block-diagonal).
    """
    found = dict[str, Tensor]()
    for name, values in weights.items():
        apart = APART.search(name)
        if apart is None:
            found[name] = values
            continue
        whole, matrix = f"{name[: apart.start()]}{apart['joined']}", apart["matrix"]
        if f"{whole}.{matrix}" not in found:
            parts = [
                weights[f"{whole}.{part}.{matrix}"] for part in FUSED_PROJECTIONS[apart["joined"]]
            ]
            side_by_side: Any = torch.block_diag
            is_one = matrix in ("weight", FIRST)
            found[f"{whole}.{matrix}"] = torch.cat(parts) if is_one else side_by_side(*parts)
    return found


def fused_parts(name: str) -> int:
    """Return how many separate projections the published matrix of that name fuses; 1 for a matrix that is not fused."""
    return len(FUSED_PROJECTIONS.get(name.split(".")[-3], (name,)))
