"""Losses, one file each; the name that an algorithm's task uses is the file's name.

A loss is a sum over response tokens divided by `normalizer`, the number of response tokens of the
whole optimizer step over all ranks and micro-batches. So losses, gradients and metrics of parts of
a batch add up to those of the batch, in whatever layout it is computed.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from torch import Tensor

from rlplan.job import Hyperparameters
from rlplan.plug_ins import PlugIns

# It is called as `loss(outputs, batch, settings, normalizer)`, where `outputs` is what the model
# being trained computes (`log_probs` and `entropy`, or `values`), every tensor has the shape (B, T),
# and entry t belongs to the token at t given the tokens before it. It returns the loss (a scalar with
# a gradient) and its metrics (scalars without one).
Loss: TypeAlias = Callable[
    [Mapping[str, Tensor], Mapping[str, Tensor], Hyperparameters, Tensor],
    tuple[Tensor, dict[str, Tensor]],
]

LOSSES = PlugIns[Loss](__name__, __path__, kind="loss", attribute="loss", dashes=False)
loss_names, load_loss = LOSSES.names, LOSSES.load
