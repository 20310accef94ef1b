"""CISPO's objective: REINFORCE with clipped weights (MiniMax 2025, MiniMax-M1, arXiv:2506.13585)."""

from collections.abc import Mapping

from torch import Tensor

from rlplan.executor.learning.losses.ppo_policy import (
    clipped_ratio,
    weighted_mean,
    with_regularisers,
)
from rlplan.executor.learning.tokenwise import log_ratio, masked, response_mask
from rlplan.job import Hyperparameters


def loss(
    outputs: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    settings: Hyperparameters,
    normalizer: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -clip(r, 1-e, 1+h) A log p, the clipped ratio without a gradient, summed and normalised.

    Eq. 4 and 5: every token keeps its gradient, however far the policy has moved. Terms of KL and
    entropy are those of `ppo_policy`.

    Arguments and metrics are those of `ppo_policy`, but for the settings `clip_ratio_dual` and
    `importance_cap`.
    """
    mask = response_mask(batch)
    new, old = outputs["log_probs"], batch["log_probs"]
    mean = weighted_mean(batch, normalizer)
    ratio = log_ratio(new, old, mask).exp().detach()
    clipped = clipped_ratio(ratio, settings)
    policy_loss = -mean(clipped * masked(batch["advantages"], mask) * masked(new, mask))
    return with_regularisers(policy_loss, clipped != ratio, outputs, batch, settings, mean)
