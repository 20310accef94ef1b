"""Losses, one file each; the name that an algorithm's task uses is the file's name.

A loss is a sum over response tokens divided by `normalizer`, the number of response tokens of the
whole optimizer step over all ranks and micro-batches. So losses, gradients and metrics of parts of
a batch add up to those of the batch, in whatever layout it is computed.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import TypeAlias

from torch import Tensor

from rlplan.errors import UnknownNameError
from rlplan.job import Hyperparameters

Loss: TypeAlias = Callable[
    [Mapping[str, Tensor], Mapping[str, Tensor], Hyperparameters, Tensor],
    tuple[Tensor, dict[str, Tensor]],
]


def loss_names() -> tuple[str, ...]:
    """Return the names of all losses, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load_loss(name: str) -> Loss:
    """Return the loss of that name.

    It is called as `loss(outputs, batch, settings, normalizer)`, where `outputs` is what the model
    being trained computes (`log_probs` and `entropy`, or `values`), every tensor has the
    shape (B, T), and entry t belongs to the token at t given the tokens before it. It returns the
    loss (a scalar with a gradient) and its metrics (scalars without one).

    Raises:
        UnknownNameError: No file of that name exists.
    """
    if name not in loss_names():
        raise UnknownNameError("loss", name, loss_names())
    loss: Loss = importlib.import_module(f"{__name__}.{name}").loss
    return loss
