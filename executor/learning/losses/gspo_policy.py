"""GSPO's objective: one ratio for a whole response (Zheng et al. 2025, arXiv:2507.18071)."""

from collections.abc import Mapping

import torch
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
    """Return -min(s A, clip(s, 1-e, 1+h) A) of each response, on each of its tokens and normalised.

    s = exp(mean over the response's tokens of log(p / p_old)) (eq. 7); with every sequence weighing the
    same it is eq. 5. Terms of KL and entropy are those of `ppo_policy`.

    Arguments and metrics are those of `ppo_policy`, but for the settings `clip_ratio_dual` and
    `importance_cap`; a row's advantages are equal, and `clip_fraction` is of responses' tokens.
    """
    mask = response_mask(batch)
    new, old = outputs["log_probs"], batch["log_probs"]
    mean = weighted_mean(batch, normalizer)
    advantages = masked(batch["advantages"], mask)
    lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)
    ratio = (log_ratio(new, old, mask).sum(dim=1, keepdim=True) / lengths).exp()
    clipped = clipped_ratio(ratio, settings)
    policy_loss = -mean(torch.minimum(ratio * advantages, clipped * advantages))
    return with_regularisers(
        policy_loss, (clipped != ratio).expand(mask.shape), outputs, batch, settings, mean
    )
