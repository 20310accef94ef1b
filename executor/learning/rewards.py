"""Rewards of responses and of their tokens: scores of models and rules, less the penalties.

Tensors of shape (B, T) are aligned with `tokens`, as in `rlplan.executor.learning.advantages`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from rlplan.errors import PlanError
from rlplan.executor.learning.tokenwise import masked, widened
from rlplan.job import Overlong, Rewards


def combined_rewards(batch: Mapping[str, Tensor], rewards: Rewards) -> Tensor:
    """Return the weighted sum of the reward model's and the rule's scores. Shape (B,).

    Raises:
        PlanError: The batch has neither.
    """
    weights = {"scores": rewards.model_weight, "rule_scores": rewards.function_weight}
    parts = [weight * widened(batch[key]) for key, weight in weights.items() if key in batch]
    if not parts:
        raise PlanError("nothing gives rewards: name a `reward` model or set `rewards.function`")
    return torch.stack(parts).sum(dim=0)


def combined_costs(batch: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of the cost model's and the cost rule's costs. Shape (B,).

    Raises:
        PlanError: The batch has neither.
    """
    parts = [widened(batch[key]) for key in ("costs", "rule_costs") if key in batch]
    if not parts:
        raise PlanError("nothing gives costs: name a `cost` model or set `rewards.cost_function`")
    return torch.stack(parts).sum(dim=0)


def overlong_penalties(mask: Tensor, overlong: Overlong, longest_tokens: int) -> Tensor:
    """Return what each response loses for its length, at most 0. Shape (B,).

    Nothing up to L - c tokens, then growing with each token to -`penalty` at L, where L is the
    longest response and c the buffer (Yu et al. 2025, DAPO, arXiv:2503.14476, eq. 13).
    """
    beyond = mask.sum(dim=1) - (longest_tokens - overlong.buffer_tokens)
    return -overlong.penalty * (beyond.float() / overlong.buffer_tokens).clamp(0.0, 1.0)


def token_penalties(batch: Mapping[str, Tensor], mask: Tensor, kl_coefficient: float) -> Tensor:
    """Return -b log(policy / reference) at every response token, zero elsewhere. Shape (B, T).

    Ziegler et al. 2019, arXiv:1909.08593, section 2; Ouyang et al. 2022, arXiv:2203.02155, eq. 2.
    """
    if kl_coefficient == 0:
        return torch.zeros(mask.shape, device=mask.device)
    policy = masked(batch["log_probs"], mask)
    return -kl_coefficient * (policy - masked(batch["reference_log_probs"], mask))


def at_last_token(sample_rewards: Tensor, mask: Tensor, token_rewards: Tensor) -> Tensor:
    """Return token rewards with each sample's own added at its response's last token. Shape (B, T).

    An empty response has no token to reward.
    """
    rows = torch.arange(mask.shape[0], device=mask.device)
    rewarded = token_rewards.clone()
    rewarded[rows, last_response_position(mask)] += sample_rewards.to(
        token_rewards.dtype
    ) * mask.any(dim=1)
    return rewarded


def last_response_position(mask: Tensor) -> Tensor:
    """Return the position of each row's last response token (0 where it has none). Shape (B,)."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    return torch.where(mask, positions, torch.zeros_like(positions)).amax(dim=1)
