"""Arithmetic over the response tokens of a batch; whatever stands elsewhere, even NaN, is ignored."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rlplan.job import KlEstimator

# exp(20) is 5e8: far beyond any clip range, and still finite in float32 and bfloat16.
LOG_RATIO_LIMIT = 20.0


def response_mask(batch: Mapping[str, Tensor]) -> Tensor:
    """Return where the response's tokens are, as booleans. Shape (B, T)."""
    return batch["response_mask"].bool()


def widened(values: Tensor) -> Tensor:
    """Return `values` in float32, or as they are where that is wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """Return `values` with zeros outside the mask, in float32 or wider. Shape (B, T)."""
    wide = widened(values)
    return torch.where(mask, wide, torch.zeros((), dtype=wide.dtype, device=wide.device))


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of `values` over the mask. Shape ()."""
    return masked(values, mask).sum()


def log_ratio(log_probs: Tensor, other_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Return log(p / q) of each response token, within the range whose exponential is finite.

    Args:
        log_probs: log p. Shape (B, T).
        other_log_probs: log q. Shape (B, T).
        mask: Where response tokens are; zero elsewhere.
    """
    difference = masked(log_probs, mask) - masked(other_log_probs, mask)
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def truncated_ratio(log_probs: Tensor, other_log_probs: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Return min(p / q, cap) of each token sampled from q, without a gradient. Shape (B, T).

    Truncated importance sampling (Ionides 2008, "Truncated importance sampling", section 2). Between a
    trainer (p) and the engine that sampled (q) it is the weight of decoupled PPO (Hilton et al. 2022,
    arXiv:2110.00641, eq. 4; Fu et al. 2025, AReaL, arXiv:2505.24298, section 5.2).
    """
    return log_ratio(log_probs, other_log_probs, mask).exp().clamp(max=cap).detach()


def divergence(kind: KlEstimator, log_probs: Tensor, other: Tensor, mask: Tensor) -> Tensor:
    """Return an estimate of KL(p || q) at each token sampled from p. Shape (B, T).

    Schulman 2020, "Approximating KL divergence": k1 = log(p/q), k2 = k1^2 / 2, k3. Under samples of p
    the gradient of k2 is that of the divergence, while that of k1 is zero in the mean: `k1+` and `k3+`
    have the value of one and the gradient of k2 (a straight-through estimate). `abs` is |k1|, which some
    trainers take; it estimates no divergence.

    Args:
        log_probs: log p.
        other: log q.
    """
    if kind == "k3":
        return k3_divergence(log_probs, other, mask)
    ratio = log_ratio(log_probs, other, mask)
    if kind == "abs":
        return ratio.abs()
    k2 = ratio**2 / 2
    if kind == "k2":
        return k2
    value = ratio if kind.startswith("k1") else k3_divergence(log_probs, other, mask)
    return k2 - k2.detach() + value.detach() if kind.endswith("+") else value


def k3_divergence(log_probs: Tensor, other_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Return an estimate of KL(p || q) at each token sampled from p; never negative. Shape (B, T).

    q/p - log(q/p) - 1: unbiased, with less variance than log(p/q) (Schulman 2020, "Approximating
    KL divergence", estimator k3; Shao et al. 2024, arXiv:2402.03300, eq. 4). Zero outside the mask.
    """
    inverse = log_ratio(other_log_probs, log_probs, mask)
    return inverse.exp() - inverse - 1.0
