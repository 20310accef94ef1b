"""Sums over ranks inside a pass, and what their gradients are.

By hand: DTensors give the same gradients and take two and a half times as long (two ranks with Gloo).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class SharedInput(torch.autograd.Function):
    """Pass a tensor on to slices of a product; sum up the gradients that come back from them."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the values as they are."""
        context.group = group
        return values

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the sum of the ranks' gradients."""
        return _summed(gradients[0], context.group), None


class SummedOutput(torch.autograd.Function):
    """Sum up what slices of a product make; every rank's gradient is that of the sum."""

    @staticmethod
    def forward(_: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the sum over the ranks."""
        return _summed(values, group)

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient as it is."""
        return gradients[0], None


class SummedBothWays(torch.autograd.Function):
    """Sum up what ranks have, and the gradients of the sum, which each of them uses in its own way."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the sum over the ranks."""
        context.group = group
        return _summed(values, group)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the sum of the ranks' gradients."""
        return _summed(gradients[0], context.group), None


class DividedGradient(torch.autograd.Function):
    """Pass a tensor on; divide its gradient among ranks that all have the whole of it."""

    @staticmethod
    def forward(context: Any, values: Tensor, ranks: int) -> Tensor:
        """Return the values as they are."""
        context.ranks = ranks
        return values

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return this rank's part of the gradient."""
        return gradients[0] / context.ranks, None


class ScatteredSum(torch.autograd.Function):
    """Sum up what ranks have of all tokens, and go on with a share of the tokens on each rank."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the sum of this rank's tokens. (B, T, width) -> (B, T / ranks, width)."""
        context.group = group
        return _scattered(values, group)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradients of all tokens."""
        return _gathered(gradients[0], context.group), None


class GatheredTokens(torch.autograd.Function):
    """Bring together the tokens that ranks share out; sum up the gradients that come back from slices of a product."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return all tokens. (B, T / ranks, width) -> (B, T, width)."""
        context.group = group
        return _gathered(values, group)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the sum of the ranks' gradients of this rank's tokens."""
        return _scattered(gradients[0], context.group), None


def _scattered(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    by_token = values.transpose(0, 1).contiguous()
    mine = by_token.new_empty(len(by_token) // dist.get_world_size(group), *by_token.shape[1:])
    dist.reduce_scatter_tensor(mine, by_token, group=group)
    return mine.transpose(0, 1)


def _gathered(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    by_token = values.transpose(0, 1).contiguous()
    found = by_token.new_empty(len(by_token) * dist.get_world_size(group), *by_token.shape[1:])
    dist.all_gather_into_tensor(found, by_token, group=group)
    return found.transpose(0, 1)


def _summed(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = values.contiguous().clone()
    dist.all_reduce(total, group=group)
    return total
