"""The critic's clipped squared error (Engstrom et al. 2020, arXiv:2005.12729, section 3)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rlplan.executor.learning.tokenwise import masked, masked_sum, response_mask
from rlplan.job import Hyperparameters


def loss(
    outputs: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    settings: Hyperparameters,
    normalizer: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return max((V - R)^2, (clip(V, V_old - e, V_old + e) - R)^2) / 2, summed and normalised.

    Args:
        outputs: `values` of the critic in training. (B, T).
        batch: `response_mask`, the `values` when the batch was generated, and `returns`. (B, T).
        settings: Takes `value_clip`, the e above.
        normalizer: Response tokens of the whole optimizer step, over all ranks and micro-batches.

    Returns:
        The loss, and sums that are normalised alike: `value_loss`, `value_clip_fraction` (where the
        clipped error is the larger one), and `value` (the mean value).
    """
    mask = response_mask(batch)
    new, old = masked(outputs["values"], mask), masked(batch["values"], mask)
    returns = masked(batch["returns"], mask)
    clipped = torch.clamp(new, old - settings.value_clip, old + settings.value_clip)
    plain_error, clipped_error = (new - returns) ** 2, (clipped - returns) ** 2
    value_loss = masked_sum(torch.maximum(plain_error, clipped_error), mask) / 2 / normalizer
    metrics = {
        "value_loss": value_loss.detach(),
        "value_clip_fraction": masked_sum((clipped_error > plain_error).float(), mask) / normalizer,
        "value": masked_sum(new, mask).detach() / normalizer,
    }
    return value_loss, metrics
