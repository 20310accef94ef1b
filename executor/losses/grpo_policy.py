"""GRPO's policy loss: PPO's surrogate plus a KL penalty (Shao et al. 2024, arXiv:2402.03300, eq. 3, 4)."""

from collections.abc import Mapping

from torch import Tensor

from executor.losses import ppo_policy
from executor.tokenwise import k3_divergence, masked_sum, response_mask
from rlplan.job import Hyperparameters


def loss(
    outputs: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    settings: Hyperparameters,
    normalizer: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return PPO's clipped surrogate plus b KL(policy || reference), summed and normalised.

    The KL divergence is a term of the loss, estimated at every token by k3 (eq. 4), with weight
    b = `kl_coefficient`; it is not part of the reward. Every token weighs the same (Yu et al. 2025,
    DAPO, arXiv:2503.14476, section 3.3); eq. 3 of GRPO weighs every response the same, which agrees
    where responses have one length, and favours short ones elsewhere.

    Args:
        outputs: As for `ppo_policy`. (B, T).
        batch: As for `ppo_policy`, and `reference_log_probs`. (B, T).
        settings: Takes `clip_ratio`, `entropy_coefficient` and `kl_coefficient`.
        normalizer: Response tokens of the whole optimizer step, over all ranks and micro-batches.

    Returns:
        The loss, and the metrics of `ppo_policy` with `reference_kl` added.
    """
    total, metrics = ppo_policy.loss(outputs, batch, settings, normalizer)
    mask = response_mask(batch)
    divergence = k3_divergence(outputs["log_probs"], batch["reference_log_probs"], mask)
    reference_kl = masked_sum(divergence, mask) / normalizer
    metrics["reference_kl"] = reference_kl.detach()
    return total + settings.kl_coefficient * reference_kl, metrics
