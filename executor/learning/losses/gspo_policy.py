"""GSPO's objective: one ratio for a whole response (Zheng et al. 2025, arXiv:2507.18071)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from executor.learning.losses.ppo_policy import clipped_ratio, weighted_mean, with_regularisers
from executor.learning.tokenwise import k3_divergence, log_ratio, masked, response_mask
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

    Args:
        outputs: As for `ppo_policy`. (B, T).
        batch: As for `ppo_policy`; a row's advantages are equal. (B, T).
        settings: As for `ppo_policy`, but for `clip_ratio_dual` and `importance_cap`.
        normalizer: Response tokens of the whole optimizer step, over all ranks and micro-batches.

    Returns:
        The loss, and the metrics of `ppo_policy`; `clip_fraction` is of responses' tokens.
    """
    mask = response_mask(batch)
    new, old = outputs["log_probs"], batch["log_probs"]
    mean = weighted_mean(batch, normalizer)
    advantages = masked(batch["advantages"], mask)
    lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)
    ratio = (log_ratio(new, old, mask).sum(dim=1, keepdim=True) / lengths).exp()
    clipped = clipped_ratio(ratio, settings)
    policy_loss = -mean(torch.minimum(ratio * advantages, clipped * advantages))
    metrics = {
        "policy_loss": policy_loss.detach(),
        "clip_fraction": mean((clipped != ratio).float().expand(mask.shape)).detach(),
        "approx_kl": mean(k3_divergence(old, new, mask)).detach(),
    }
    return with_regularisers(policy_loss, metrics, outputs, batch, settings, mean)
