"""Estimators of advantages: from token rewards or whole rewards to what an action was worth.

Tensors of shape (B, T) are aligned with `tokens`, as in `executor.learning.advantages`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from executor.learning.tokenwise import masked
from rlplan.errors import PlanError

# Keeps a division by the spread of equal values finite; far below any spread worth learning from.
SMALLEST_SPREAD = 1e-6


def gae(
    token_rewards: Tensor, values: Tensor, mask: Tensor, discount: float, gae_lambda: float
) -> Tensor:
    """Return generalised advantage estimates, not whitened; zero outside the mask. Shape (B, T).

    A_t = d_t + g l A_{t+1} with d_t = r_t + g V_{t+1} - V_t over the response's tokens; the state
    after the last one is worth nothing (Schulman et al. 2016, arXiv:1506.02438, eq. 16).
    """
    advantages = torch.zeros_like(token_rewards)
    next_value = torch.zeros_like(token_rewards[:, 0])
    next_advantage = torch.zeros_like(next_value)
    for position in range(mask.shape[1] - 1, -1, -1):
        inside = mask[:, position]
        delta = token_rewards[:, position] + discount * next_value - values[:, position]
        advantage = delta + discount * gae_lambda * next_advantage
        next_value = torch.where(inside, values[:, position], next_value)
        next_advantage = torch.where(inside, advantage, next_advantage)
        advantages[:, position] = torch.where(inside, advantage, torch.zeros_like(advantage))
    return advantages


def rewards_to_go(token_rewards: Tensor, mask: Tensor, discount: float) -> Tensor:
    """Return the discounted sum of the rewards from each token on; zero elsewhere. Shape (B, T).

    G_t = sum over s >= t of g^(s-t) r_s (Hu 2025, REINFORCE++, arXiv:2501.03262, section 3).
    """
    return gae(token_rewards, torch.zeros_like(token_rewards), mask, discount, 1.0)


def whiten(values: Tensor, mask: Tensor, reduce_sum: Callable[[Tensor], Tensor]) -> Tensor:
    """Return values shifted and scaled to mean 0 and variance 1 over the masks of all ranks.

    Shape (B, T). Sums are float64, so that the layout changes nothing that float32 can hold.
    """
    wide = masked(values, mask).double()
    count, total = reduce_sum(torch.stack([mask.double().sum(), wide.sum()]))
    mean = total / count.clamp(min=1)
    centred = masked(wide - mean, mask)
    variance = reduce_sum((centred**2).sum()) / count.clamp(min=1)
    whitened: Tensor = centred / (variance.sqrt() + SMALLEST_SPREAD)
    return whitened.to(values.dtype)


def group_advantages(sample_rewards: Tensor, samples_per_prompt: int) -> Tensor:
    """Return (r - mean) / std of each reward within the samples of its prompt. Shape (B,).

    Shao et al. 2024, arXiv:2402.03300, section 4.1.2; the standard deviation is the sample's
    (divided by n - 1). A group of equal rewards teaches nothing: its advantages are zero.

    Raises:
        PlanError: A group has only one sample.
    """
    groups = _groups(sample_rewards, samples_per_prompt)
    centred = groups - groups.mean(dim=1, keepdim=True)
    relative = centred / (groups.std(dim=1, keepdim=True) + SMALLEST_SPREAD)
    return relative.flatten().to(sample_rewards.dtype)


def group_mean_advantages(sample_rewards: Tensor, samples_per_prompt: int) -> Tensor:
    """Return each reward less the mean of its prompt's samples. Shape (B,).

    Liu et al. 2025, Dr. GRPO, arXiv:2503.20783, section 3.2: dividing by the spread would favour
    questions that are almost always, or almost never, answered.

    Raises:
        PlanError: A group has only one sample.
    """
    groups = _groups(sample_rewards, samples_per_prompt)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return centred.flatten().to(sample_rewards.dtype)


def leave_one_out_advantages(sample_rewards: Tensor, samples_per_prompt: int) -> Tensor:
    """Return each reward less the mean of its prompt's other samples. Shape (B,).

    Ahmadian et al. 2024, arXiv:2402.14740, section 2.3 (the RLOO estimator; Kool et al. 2019).

    Raises:
        PlanError: A group has only one sample.
    """
    groups = _groups(sample_rewards, samples_per_prompt)
    others = (groups.sum(dim=1, keepdim=True) - groups) / (samples_per_prompt - 1)
    return (groups - others).flatten().to(sample_rewards.dtype)


def _groups(sample_rewards: Tensor, samples_per_prompt: int) -> Tensor:
    if samples_per_prompt == 1:
        raise PlanError(
            "workload.samples_per_prompt: advantages relative to a group need at least 2 samples"
            " of a prompt; found 1"
        )
    assert sample_rewards.numel() % samples_per_prompt == 0, "a group was cut in two"
    return sample_rewards.double().view(-1, samples_per_prompt)
