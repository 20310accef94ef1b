"""PPO's clipped surrogate with an entropy bonus (Schulman et al. 2017, arXiv:1707.06347, eq. 7, 9)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from executor.tokenwise import k3_divergence, log_ratio, masked, masked_sum, response_mask
from rlplan.job import Hyperparameters


def loss(
    outputs: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    settings: Hyperparameters,
    normalizer: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -min(r A, clip(r, 1-e, 1+e) A) - c S, summed over response tokens and normalised.

    r is the probability ratio to the policy that generated (eq. 7); S is the entropy, with weight
    c = `entropy_coefficient` (eq. 9; the value loss has a file and a model of its own).

    Args:
        outputs: `log_probs` of the policy in training, and its `entropy` if it was computed. (B, T).
        batch: `response_mask`, the generating policy's `log_probs`, and `advantages`. (B, T).
        settings: Takes `clip_ratio` and `entropy_coefficient`.
        normalizer: Response tokens of the whole optimizer step, over all ranks and micro-batches.

    Returns:
        The loss, and sums that are normalised alike: `policy_loss`, `clip_fraction`, `approx_kl`
        (KL from the generating policy), and `entropy` if it was computed.
    """
    mask = response_mask(batch)
    new, old = outputs["log_probs"], batch["log_probs"]
    advantages = masked(batch["advantages"], mask)
    ratio = log_ratio(new, old, mask).exp()
    clipped = ratio.clamp(1.0 - settings.clip_ratio, 1.0 + settings.clip_ratio)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    policy_loss = -masked_sum(surrogate, mask) / normalizer

    total = policy_loss
    metrics = {
        "policy_loss": policy_loss.detach(),
        "clip_fraction": masked_sum((clipped != ratio).float(), mask).detach() / normalizer,
        "approx_kl": masked_sum(k3_divergence(old, new, mask), mask).detach() / normalizer,
    }
    if "entropy" in outputs:
        entropy = masked_sum(outputs["entropy"], mask) / normalizer
        metrics["entropy"] = entropy.detach()
        if settings.entropy_coefficient > 0:
            total = total - settings.entropy_coefficient * entropy
    else:
        assert settings.entropy_coefficient == 0, "the entropy bonus needs outputs['entropy']"
    return total, metrics
