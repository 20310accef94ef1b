"""Rewards and advantages of a batch of responses, by the estimator that the algorithm names.

Every tensor of shape (B, T) is aligned with `tokens`: entry t belongs to the token at t and to the
state before it (the tokens before t). So `log_probs[:, t]` and `values[:, t]` are what the models
give out at position t - 1, and `values[:, t]` knows nothing of the token at t.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlplan.dataflow import Advantage
from rlplan.errors import PlanError
from rlplan.executor.data.batches import BASELINE
from rlplan.executor.learning.rewards import (
    at_last_token,
    combined_costs,
    combined_rewards,
    token_penalties,
)
from rlplan.executor.learning.tokenwise import masked, response_mask
from rlplan.job import Hyperparameters, Rewards

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


Batch = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Hold what estimators need beside the batch.

    Attributes:
        settings: With the algorithm's defaults filled in: takes `kl_coefficient`, `kl_in`,
            `discount` and `gae_lambda`.
        samples_per_prompt: Size of a group; the samples of one prompt are consecutive rows.
        rewards: The job's weights.
        multiplier: Lagrange multiplier of the cost (Safe-RLHF).
        reduce_sum: Returns the sum of a tensor over the data-parallel ranks (one process: identity).
    """

    settings: Hyperparameters
    samples_per_prompt: int = 1
    rewards: Rewards = field(default_factory=Rewards)
    multiplier: float = 0.0
    reduce_sum: Callable[[Tensor], Tensor] = lambda tensor: tensor

    @property
    def reward_kl_coefficient(self) -> float:
        """Return the weight of the KL penalty in the rewards; 0 where it is a term of the loss."""
        return self.settings.kl_coefficient if self.settings.kl_in == "reward" else 0.0


Estimator = Callable[[Batch, Terms], Batch]


def compute_advantages(estimator: Advantage, batch: Batch, terms: Terms) -> Batch:
    """Return the batch with `rewards` (B,), `advantages` (B, T) and, for critics, their `returns`.

    Call it once on a rank's whole share of the global batch, before it is cut into updates.

    Args:
        batch: `response_mask` (B, T), `scores` and `rule_scores` (either or both, (B,)),
            `log_probs`, and what the estimator needs: `reference_log_probs`, `values` (B, T), ...
            `rewards` may be there already, penalties of samples included.

    Raises:
        PlanError: There is nothing to take rewards from, or a group has only one sample.
    """
    batch = {**batch}
    if "rewards" not in batch:
        batch["rewards"] = combined_rewards(batch, terms.rewards)
    return batch | ESTIMATORS[estimator](batch, terms)


def penalised_token_rewards(batch: Batch, terms: Terms) -> Tensor:
    """Return the KL penalty at every response token, and the reward at the last one. Shape (B, T)."""
    mask = response_mask(batch)
    penalties = token_penalties(batch, mask, terms.reward_kl_coefficient)
    return at_last_token(batch["rewards"], mask, penalties)


def _gae(batch: Batch, terms: Terms) -> Batch:
    """PPO (Schulman et al. 2017; Ouyang et al. 2022): GAE of the penalised rewards, whitened."""
    mask = response_mask(batch)
    values = masked(batch["values"], mask)
    advantages = _gae_of(penalised_token_rewards(batch, terms), values, mask, terms)
    return {
        "returns": advantages + values,
        "advantages": whiten(advantages, mask, terms.reduce_sum),
    }


def _constrained_gae(batch: Batch, terms: Terms) -> Batch:
    """Safe-RLHF: (A_r - m A_c) / (1 + m) with multiplier m, whitened.

    Dai et al. 2023, arXiv:2310.12773, section 3.3 and appendix B: the KL penalty goes in halves
    to the reward and, with the other sign, to the cost. With one critic for both, its value is that
    of the combined reward, whose GAE is the combination of both, since GAE is linear.
    """
    mask, multiplier = response_mask(batch), terms.multiplier
    half = token_penalties(batch, mask, terms.reward_kl_coefficient / 2)
    rewarded = at_last_token(batch["rewards"], mask, half)
    charged = at_last_token(combined_costs(batch), mask, -half)
    values = masked(batch["values"], mask)
    made: Batch = {}
    if "cost_values" in batch:
        cost_values = masked(batch["cost_values"], mask)
        rewards, costs = (
            _gae_of(rewarded, values, mask, terms),
            _gae_of(charged, cost_values, mask, terms),
        )
        advantages = (rewards - multiplier * costs) / (1 + multiplier)
        made = {"returns": rewards + values, "cost_returns": costs + cost_values}
    else:
        combined = (rewarded - multiplier * charged) / (1 + multiplier)
        advantages = _gae_of(combined, values, mask, terms)
        made = {"returns": advantages + values}
    return made | {"advantages": whiten(advantages, mask, terms.reduce_sum)}


def _gae_of(token_rewards: Tensor, values: Tensor, mask: Tensor, terms: Terms) -> Tensor:
    settings = terms.settings
    return gae(token_rewards, values, mask, settings.discount, settings.gae_lambda)


def _relative(estimate: Callable[[Tensor, int], Tensor]) -> Estimator:
    """Return an estimator of whole responses, each relative to its group, on every token alike."""

    def advantages(batch: Batch, terms: Terms) -> Batch:
        mask = response_mask(batch)
        relative = estimate(_penalised_samples(batch, terms), terms.samples_per_prompt)
        return {"advantages": masked(relative[:, None].expand(mask.shape), mask)}

    return advantages


def _whitened_group(batch: Batch, terms: Terms) -> Batch:
    """REINFORCE++ with a baseline: less the mean of the group, whitened over the global batch's tokens.

    Hu 2025, arXiv:2501.03262, section 3.2.
    """
    advantages = _relative(group_mean_advantages)(batch, terms)["advantages"]
    return {"advantages": whiten(advantages, response_mask(batch), terms.reduce_sum)}


def _greedy_baseline(batch: Batch, terms: Terms) -> Batch:
    """ReMax: the rewards to go less the return of the greedy response.

    Li et al. 2024, arXiv:2310.10505, algorithm 1, where the reward comes at the last token; a KL
    penalty in the rewards makes them differ by token.
    """
    mask, discount = response_mask(batch), terms.settings.discount
    sampled = rewards_to_go(penalised_token_rewards(batch, terms), mask, discount)
    greedy = {
        key.removeprefix(BASELINE): column
        for key, column in batch.items()
        if key.startswith(BASELINE)
    }
    greedy["rewards"] = combined_rewards(greedy, terms.rewards)
    greedy_mask = response_mask(greedy)
    returns = rewards_to_go(penalised_token_rewards(greedy, terms), greedy_mask, discount)
    first = greedy_mask.int().argmax(dim=1, keepdim=True)
    baseline = returns.gather(1, first)
    return {"baseline_rewards": greedy["rewards"], "advantages": masked(sampled - baseline, mask)}


def _whitened_returns(batch: Batch, terms: Terms) -> Batch:
    """REINFORCE++: penalised rewards to go, whitened over the global batch (Hu 2025, section 3)."""
    mask = response_mask(batch)
    returns = rewards_to_go(penalised_token_rewards(batch, terms), mask, terms.settings.discount)
    return {"advantages": whiten(returns, mask, terms.reduce_sum)}


def _penalised_samples(batch: Batch, terms: Terms) -> Tensor:
    """Return each sample's reward with the KL penalties of all its tokens. Shape (B,)."""
    penalties = token_penalties(batch, response_mask(batch), terms.reward_kl_coefficient)
    rewards: Tensor = batch["rewards"] + penalties.sum(dim=1)
    return rewards


ESTIMATORS: dict[Advantage, Estimator] = {
    "gae": _gae,
    "constrained-gae": _constrained_gae,
    "group": _relative(group_advantages),  # GRPO, DAPO
    "group-mean": _relative(group_mean_advantages),  # Dr. GRPO
    "leave-one-out": _relative(leave_one_out_advantages),  # RLOO
    "greedy-baseline": _greedy_baseline,
    "whitened-returns": _whitened_returns,
    "whitened-group": _whitened_group,
}
