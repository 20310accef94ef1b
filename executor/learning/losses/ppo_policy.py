"""PPO's clipped surrogate, with what later algorithms made of it by settings.

Schulman et al. 2017, arXiv:1707.06347, eq. 7 and 9. With `clip_ratio_high` it is DAPO's clip-higher
(Yu et al. 2025, arXiv:2503.14476, eq. 8); with `kl_in: loss` and every sequence weighing the same it
is GRPO's objective (Shao et al. 2024, arXiv:2402.03300, eq. 3). At the policy that generated, where
the ratio is 1, its gradient is that of REINFORCE, -A grad log p, which is ReMax's (Li et al. 2024,
arXiv:2310.10505, algorithm 1), RLOO's (Ahmadian et al. 2024, arXiv:2402.14740, section 2.3) and
REINFORCE++'s (Hu 2025, arXiv:2501.03262, which clips as PPO does). With `importance_cap` it is decoupled PPO
(Hilton et al. 2022, arXiv:2110.00641, eq. 4; Fu et al. 2025, AReaL, arXiv:2505.24298, section 5.2) with truncated
weights: the ratio is clipped around the policy that the trainer had before its updates, and samples of an older
one, or of an engine that computes otherwise, are weighed by min(p_trainer / p_engine, cap). With
`clip_ratio_dual` a ratio counts at most so much where the advantage is negative (Ye et al. 2020, arXiv:1912.09729,
eq. 5).
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rlplan.executor.data.batches import ROLLOUT_LOG_PROBS
from rlplan.executor.learning.tokenwise import (
    divergence,
    k3_divergence,
    log_ratio,
    masked,
    response_mask,
    truncated_ratio,
)
from rlplan.job import Hyperparameters

Mean = Callable[[Tensor], Tensor]


def loss(
    outputs: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    settings: Hyperparameters,
    normalizer: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -w min(r A, clip(r, 1-e, 1+h) A) + b KL - c S, summed over response tokens and normalised.

    r is the probability ratio to the policy that generated (eq. 7), or that the trainer had when the
    iteration began; w is 1 without `importance_cap`; S is the entropy, with weight
    c = `entropy_coefficient` (eq. 9; the value loss has a file and a model of its own). KL to the
    reference, estimated by `kl_estimator` (k3: GRPO, eq. 4), has weight b = `kl_coefficient` where `kl_in` is `loss`.

    Args:
        outputs: `log_probs` of the policy in training, and its `entropy` if it was computed. (B, T).
        batch: `response_mask`, the generating policy's `log_probs`, and `advantages`; where they
            are needed `reference_log_probs`, `loss_weights` by which tokens weigh, and the engine's
            `rollout_log_probs` beside the trainer's. (B, T).
        settings: Takes `clip_ratio`, `clip_ratio_high`, `clip_ratio_dual`, `importance_cap`,
            `entropy_coefficient`, `kl_in`, `kl_estimator` and `kl_coefficient`.
        normalizer: Response tokens of the whole optimizer step, over all ranks and micro-batches.

    Returns:
        The loss, and sums that are normalised alike: `policy_loss`, `clip_fraction`, `approx_kl`
        (KL from the generating policy), `reference_kl` if it is a term, `entropy` if it was computed,
        `importance_weight` and `importance_capped_fraction` where w is not 1.
    """
    mask = response_mask(batch)
    new, old = outputs["log_probs"], batch["log_probs"]
    mean = weighted_mean(batch, normalizer)
    advantages = masked(batch["advantages"], mask)
    ratio = log_ratio(new, old, mask).exp()
    clipped = clipped_ratio(ratio, settings)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    if settings.clip_ratio_dual is not None:
        least = torch.maximum(surrogate, settings.clip_ratio_dual * advantages)
        surrogate = torch.where(advantages < 0, least, surrogate)
    metrics: dict[str, Tensor] = {}
    if settings.importance_cap is not None and ROLLOUT_LOG_PROBS in batch:
        cap = settings.importance_cap
        weights = truncated_ratio(old, batch[ROLLOUT_LOG_PROBS], mask, cap)
        metrics["importance_weight"] = mean(weights)
        metrics["importance_capped_fraction"] = mean((weights >= cap).float())
        surrogate = weights * surrogate
    total, others = with_regularisers(
        -mean(surrogate), clipped != ratio, outputs, batch, settings, mean
    )
    return total, {**metrics, **others}


def weighted_mean(batch: Mapping[str, Tensor], normalizer: Tensor) -> Mean:
    """Return what sums values (B, T) over response tokens, by their weights, and normalises the sum."""
    mask = response_mask(batch)

    def mean(values: Tensor) -> Tensor:
        own = masked(values, mask)
        if "loss_weights" in batch:
            own = own * masked(batch["loss_weights"], mask)
        return own.sum() / normalizer

    return mean


def clipped_ratio(ratio: Tensor, settings: Hyperparameters) -> Tensor:
    """Return ratios between 1 - `clip_ratio` and 1 + `clip_ratio_high`. Shape as given."""
    low, high = settings.clip_ratio, settings.clip_ratio_high
    assert low is not None, "settings have the algorithm's defaults filled in"
    return ratio.clamp(1.0 - low, 1.0 + (low if high is None else high))


def with_regularisers(
    policy_loss: Tensor,
    is_clipped: Tensor,
    outputs: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    settings: Hyperparameters,
    mean: Mean,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a policy's loss + b KL - c S, and its metrics with those of both terms.

    Args:
        is_clipped: Where the ratio was. (B, T).
    """
    mask, total = response_mask(batch), policy_loss
    metrics = {
        "policy_loss": policy_loss.detach(),
        "clip_fraction": mean(is_clipped.float()).detach(),
        "approx_kl": mean(k3_divergence(batch["log_probs"], outputs["log_probs"], mask)).detach(),
    }
    if settings.kl_in == "loss" and settings.kl_coefficient > 0:
        kind = settings.kl_estimator or "k3"
        reference = batch["reference_log_probs"]
        reference_kl = mean(divergence(kind, outputs["log_probs"], reference, mask))
        metrics["reference_kl"] = reference_kl.detach()
        total = total + settings.kl_coefficient * reference_kl
    if "entropy" in outputs:
        entropy = mean(outputs["entropy"])
        metrics["entropy"] = entropy.detach()
        if settings.entropy_coefficient > 0:
            total = total - settings.entropy_coefficient * entropy
    else:
        assert settings.entropy_coefficient == 0, "the entropy bonus needs outputs['entropy']"
    return total, metrics
