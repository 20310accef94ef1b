"""Matrices that a family has as one, told apart: tensor-parallel ranks cut each by itself.

Phi 3 has queries, keys and values in one matrix, and so an MLP's gate and what it gates. A rank has some rows of
each, which lie together nowhere in that matrix.
"""

import re
from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

# What is published as one matrix, and its parts in their order.
JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
APART = re.compile(
    r"(?P<joined>qkv_proj|gate_up_proj)\.(?P<part>\w+_proj)\.(?P<matrix>(lora_[AB]\.)?weight)$"
)
FIRST = "lora_A.weight"


class Joined(nn.Module):
    """Hold matrices of one input, by their names; the output has theirs one after another."""

    def __init__(self, width: int, rows: dict[str, int]) -> None:
        super().__init__()
        for name, count in rows.items():
            self.add_module(name, nn.Linear(width, count, bias=False))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return all outputs. (..., rows of this rank)."""
        return torch.cat([each(inputs) for each in self.children()], dim=-1)


def tell_apart(backbone: nn.Module) -> None:
    """Replace joined matrices of a transformer by matrices of their own, in place."""
    config: Any = backbone.config
    for module in list(backbone.modules()):
        if isinstance(getattr(module, "qkv_proj", None), nn.Linear):
            heads = module.head_dim
            keys = config.num_key_value_heads * heads
            rows = {"q_proj": config.num_attention_heads * heads, "k_proj": keys, "v_proj": keys}
            module.qkv_proj = Joined(config.hidden_size, rows)
        if isinstance(getattr(module, "gate_up_proj", None), nn.Linear):
            width = config.intermediate_size
            module.gate_up_proj = Joined(config.hidden_size, {"gate_proj": width, "up_proj": width})


def keep_heads(stage: nn.Module, ranks: int) -> None:
    """Let attention over joined matrices find the heads that one of so many tensor-parallel ranks has."""
    for module in stage.modules():
        if not isinstance(getattr(module, "qkv_proj", None), Joined):
            continue
        attention: Any = module
        attention.config = copy(attention.config)
        attention.config.num_attention_heads //= ranks
        attention.num_key_value_heads //= ranks


def put_together(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights by name with those that are told apart here as the one matrix that is published.

    So are adapters beside them, as one of all their ranks together: every rank of it makes rows of one part alone.
    """
    found = dict[str, Tensor]()
    for name, values in weights.items():
        apart = APART.search(name)
        if apart is None:
            found[name] = values
            continue
        whole, matrix = f"{name[: apart.start()]}{apart['joined']}", apart["matrix"]
        if f"{whole}.{matrix}" not in found:
            parts = [weights[f"{whole}.{part}.{matrix}"] for part in JOINED[apart["joined"]]]
            side_by_side: Any = torch.block_diag
            is_one = matrix in ("weight", FIRST)
            found[f"{whole}.{matrix}"] = torch.cat(parts) if is_one else side_by_side(*parts)
    return found


def joined_parts(name: str) -> int:
    """Return of how many matrices told apart here the matrix of that name is made; 1 for one that is published so."""
    return len(JOINED.get(name.split(".")[-3], (name,)))
