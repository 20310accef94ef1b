"""Rewards and advantages of a batch of responses.

Every tensor of shape (B, T) is aligned with `tokens`: entry t speaks of the token at t and of the
state before it (the tokens before t). So `log_probs[:, t]` and `values[:, t]` are what the models
give out at position t - 1, and `values[:, t]` knows nothing of the token at t.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from executor.tokenwise import masked, response_mask, widened
from rlplan.dataflow import Algorithm
from rlplan.errors import PlanError
from rlplan.job import Hyperparameters, Rewards

# Keeps a division by the spread of equal values finite; far below any spread worth learning from.
SMALLEST_SPREAD = 1e-6


def compute_advantages(
    algorithm: Algorithm,
    batch: dict[str, Tensor],
    settings: Hyperparameters,
    samples_per_prompt: int,
    reduce_sum: Callable[[Tensor], Tensor],
    rewards: Rewards | None = None,
) -> dict[str, Tensor]:
    """Return the batch with `rewards` (B,) and `advantages` (B, T), and for GAE `returns` (B, T).

    Call it once on a rank's whole share of the global batch, before it is cut into updates.

    Args:
        algorithm: Says which estimator.
        batch: `response_mask`, `scores` and `rule_scores` (either or both, (B,)); for GAE also
            `log_probs`, `reference_log_probs` and `values`. (B, T).
        settings: Takes `kl_coefficient`, `discount` and `gae_lambda`.
        samples_per_prompt: Size of a group; the samples of one prompt are consecutive rows.
        reduce_sum: Returns the sum of a tensor over the data-parallel ranks (one process: identity).
        rewards: The job's weights; None weighs both sources with 1.

    Raises:
        PlanError: There is nothing to take rewards from, or a group has only one sample.
    """
    mask = response_mask(batch)
    sample_rewards = combined_rewards(batch, rewards or Rewards())
    if algorithm.advantage == "group":
        relative = group_advantages(sample_rewards, samples_per_prompt)
        advantages = masked(relative[:, None].expand(mask.shape), mask)
        return {**batch, "rewards": sample_rewards, "advantages": advantages}
    token_rewards = penalised_token_rewards(batch, sample_rewards, settings.kl_coefficient)
    values = masked(batch["values"], mask)
    advantages = gae(token_rewards, values, mask, settings.discount, settings.gae_lambda)
    return {
        **batch,
        "rewards": sample_rewards,
        "returns": advantages + values,
        "advantages": whiten(advantages, mask, reduce_sum),
    }


def combined_rewards(batch: dict[str, Tensor], rewards: Rewards) -> Tensor:
    """Return the weighted sum of the reward model's and the rule's scores. Shape (B,).

    Raises:
        PlanError: The batch has neither.
    """
    weights = {"scores": rewards.model_weight, "rule_scores": rewards.function_weight}
    parts = [weight * widened(batch[key]) for key, weight in weights.items() if key in batch]
    if not parts:
        raise PlanError("nothing gives rewards: name a `reward` model or set `rewards.function`")
    return torch.stack(parts).sum(dim=0)


def penalised_token_rewards(
    batch: dict[str, Tensor], sample_rewards: Tensor, kl_coefficient: float
) -> Tensor:
    """Return -b log(policy / reference) at every response token, plus the reward at the last one.

    Shape (B, T). Ziegler et al. 2019, arXiv:1909.08593, section 2; Ouyang et al. 2022,
    arXiv:2203.02155, eq. 2.
    """
    mask = response_mask(batch)
    log_ratios = masked(batch["log_probs"], mask) - masked(batch["reference_log_probs"], mask)
    token_rewards = -kl_coefficient * log_ratios
    rows = torch.arange(mask.shape[0], device=mask.device)
    last = last_response_position(mask)
    # An empty response has no token to reward.
    token_rewards[rows, last] += sample_rewards.to(token_rewards.dtype) * mask.any(dim=1)
    return token_rewards


def last_response_position(mask: Tensor) -> Tensor:
    """Return the position of each row's last response token (0 where it has none). Shape (B,)."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    return torch.where(mask, positions, torch.zeros_like(positions)).amax(dim=1)


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
    if samples_per_prompt == 1:
        raise PlanError(
            "workload.samples_per_prompt: advantages relative to a group need at least 2 samples"
            " of a prompt; found 1"
        )
    assert sample_rewards.numel() % samples_per_prompt == 0, "a group was cut in two"
    groups = sample_rewards.double().view(-1, samples_per_prompt)
    centred = groups - groups.mean(dim=1, keepdim=True)
    relative = centred / (groups.std(dim=1, keepdim=True) + SMALLEST_SPREAD)
    return relative.flatten().to(sample_rewards.dtype)
