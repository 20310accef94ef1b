"""What is learnt from a batch: rewards shaped, advantages estimated, columns of an update."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from rlplan.dataflow import Advantage, Algorithm
from rlplan.errors import PlanError
from rlplan.executor.data.batches import BASELINE, PADDING, PROMPT, RESPONSE
from rlplan.executor.learning.multiplier import KL_COEFFICIENT, MULTIPLIER
from rlplan.executor.learning.tokenwise import masked, response_mask, widened
from rlplan.executor.parallel.meshes import ReduceSum
from rlplan.job import Hyperparameters, Job, Overlong, Rewards
from rlplan.workload import longest


def combined_rewards(batch: Mapping[str, Tensor], rewards: Rewards) -> Tensor:
    """Return the weighted sum of the reward model's and the rule's scores. Shape (B,).

    Zeros where a teacher alone is learnt from.

    Raises:
        PlanError: The batch has neither, and no teacher.
    """
    weights = {"scores": rewards.model_weight, "rule_scores": rewards.function_weight}
    parts = [weight * widened(batch[key]) for key, weight in weights.items() if key in batch]
    if not parts and "teacher_log_probs" in batch:
        return torch.zeros(
            len(batch["teacher_log_probs"]), device=batch["teacher_log_probs"].device
        )
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
class EstimatorSettings:
    """Hold the settings of advantage estimators.

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


Estimator = Callable[[Batch, EstimatorSettings], Batch]


def compute_advantages(estimator: Advantage, batch: Batch, terms: EstimatorSettings) -> Batch:
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


def penalised_token_rewards(batch: Batch, terms: EstimatorSettings) -> Tensor:
    """Return the KL penalty at every response token, and the reward at the last one. Shape (B, T)."""
    mask = response_mask(batch)
    penalties = token_penalties(batch, mask, terms.reward_kl_coefficient)
    return at_last_token(batch["rewards"], mask, penalties)


def _gae(batch: Batch, terms: EstimatorSettings) -> Batch:
    """PPO (Schulman et al. 2017; Ouyang et al. 2022): GAE of the penalised rewards, whitened."""
    mask = response_mask(batch)
    values = masked(batch["values"], mask)
    advantages = _gae_of(penalised_token_rewards(batch, terms), values, mask, terms)
    return {
        "returns": advantages + values,
        "advantages": whiten(advantages, mask, terms.reduce_sum),
    }


def _constrained_gae(batch: Batch, terms: EstimatorSettings) -> Batch:
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


def _gae_of(
    token_rewards: Tensor, values: Tensor, mask: Tensor, terms: EstimatorSettings
) -> Tensor:
    settings = terms.settings
    return gae(token_rewards, values, mask, settings.discount, settings.gae_lambda)


def _relative(estimate: Callable[[Tensor, int], Tensor]) -> Estimator:
    """Return an estimator of whole responses, each relative to its group, on every token alike."""

    def advantages(batch: Batch, terms: EstimatorSettings) -> Batch:
        mask = response_mask(batch)
        relative = estimate(_penalised_samples(batch, terms), terms.samples_per_prompt)
        return {"advantages": masked(relative[:, None].expand(mask.shape), mask)}

    return advantages


def _whitened_group(batch: Batch, terms: EstimatorSettings) -> Batch:
    """REINFORCE++ with a baseline: less the mean of the group, whitened over the global batch's tokens.

    Hu 2025, arXiv:2501.03262, section 3.2.
    """
    advantages = _relative(group_mean_advantages)(batch, terms)["advantages"]
    return {"advantages": whiten(advantages, response_mask(batch), terms.reduce_sum)}


def _greedy_baseline(batch: Batch, terms: EstimatorSettings) -> Batch:
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


def _whitened_returns(batch: Batch, terms: EstimatorSettings) -> Batch:
    """REINFORCE++: penalised rewards to go, whitened over the global batch (Hu 2025, section 3)."""
    mask = response_mask(batch)
    returns = rewards_to_go(penalised_token_rewards(batch, terms), mask, terms.settings.discount)
    return {"advantages": whiten(returns, mask, terms.reduce_sum)}


def _penalised_samples(batch: Batch, terms: EstimatorSettings) -> Tensor:
    """Return each sample's reward with the KL penalties of all its tokens. Shape (B,)."""
    penalties = token_penalties(batch, response_mask(batch), terms.reward_kl_coefficient)
    rewards: Tensor = batch["rewards"] + penalties.sum(dim=1)
    return rewards


def teacher_advantages(batch: Batch, coefficient: float) -> Tensor:
    """Return c log(teacher / policy) at every response token, zero elsewhere. Shape (B, T).

    The gradient of the reverse KL divergence on the policy's own samples, without the later tokens' share (Gu et
    al. 2024, MiniLLM, arXiv:2306.08543, eq. 3, the single-step part).
    """
    mask = response_mask(batch)
    teacher, policy = (masked(batch[key], mask) for key in ("teacher_log_probs", "log_probs"))
    return coefficient * (teacher - policy)


def _none(batch: Batch, _: EstimatorSettings) -> Batch:
    """On-policy distillation: nothing but what a teacher adds."""
    return {"advantages": torch.zeros_like(batch["log_probs"])}


ESTIMATORS: dict[Advantage, Estimator] = {
    "gae": _gae,
    "constrained-gae": _constrained_gae,
    "group": _relative(group_advantages),  # GRPO, DAPO
    "group-mean": _relative(group_mean_advantages),  # Dr. GRPO
    "leave-one-out": _relative(leave_one_out_advantages),  # RLOO
    "greedy-baseline": _greedy_baseline,
    "whitened-returns": _whitened_returns,
    "whitened-group": _whitened_group,
    "none": _none,
}
# Those that compare a response with the others of its prompt: where all have one reward, it teaches nothing.
COMPARING: Final[tuple[Advantage, ...]] = ("group", "group-mean", "leave-one-out", "whitened-group")


EMPTY: Mapping[str, float] = MappingProxyType({})


def make_experience(
    job: Job,
    algorithm: Algorithm,
    columns: Mapping[str, Tensor],
    state: Mapping[str, float],
    reduce_sum: ReduceSum,
) -> tuple[Batch, dict[str, float]]:
    """Return the rows of an update, token columns only (B, T), and sums over this rank's responses.

    Args:
        columns: Of a rank's rows.
        state: What the algorithm carries from iteration to iteration.
        reduce_sum: Returns the sum of a tensor over the data-parallel ranks.
    """
    settings = effective_settings(algorithm, job.hyperparameters, state)
    batch = {**columns, "response_mask": columns["parts"] == RESPONSE}
    if "baseline_parts" in batch:
        batch["baseline_response_mask"] = batch["baseline_parts"] == RESPONSE
    mask, updates = batch["response_mask"], job.workload.updates
    batch["rewards"] = _sample_rewards(job, batch)
    batch = compute_advantages(
        algorithm.advantage,
        batch,
        EstimatorSettings(
            settings=settings,
            samples_per_prompt=job.workload.samples_per_prompt,
            rewards=job.rewards or Rewards(),
            multiplier=state.get(MULTIPLIER, 0.0),
            reduce_sum=reduce_sum,
        ),
    )
    if "teacher_log_probs" in batch:
        taught = teacher_advantages(batch, settings.teacher_coefficient)
        batch["advantages"] = batch["advantages"] + taught
    if settings.loss_mean == "sequence":
        batch["loss_weights"] = sequence_weights(mask, updates, reduce_sum)
    elif settings.loss_mean == "sum":
        batch["loss_weights"] = sum_weights(mask, updates, reduce_sum)
    elif settings.loss_mean != "token":
        norm = (
            longest(job.workload.response_tokens) if settings.loss_mean == "token-sum-norm" else 1
        )
        batch["loss_weights"] = token_sum_weights(mask, updates, reduce_sum) / norm
    rows = {
        name: column
        for name, column in batch.items()
        if column.dim() == mask.dim() and not name.startswith(("baseline_", "pretrain_"))
    }
    if "pretrain_tokens" in batch and job.pretrain is not None:
        rows = _with_texts(rows, batch, job.pretrain.coefficient, updates, reduce_sum)
    sums = _sums(batch)
    if algorithm.advantage in COMPARING:
        groups = _groups(batch["rewards"], job.workload.samples_per_prompt)
        alike = (groups == groups[:, :1]).all(dim=1).sum().item()
        sums["equal_rewards_sum"] = alike * groups.shape[1]
    return rows, sums


def _sample_rewards(job: Job, batch: Batch) -> Tensor:
    """Return each response's reward, the penalty for its length included. Shape (B,)."""
    rewards = combined_rewards(batch, job.rewards or Rewards())
    if job.overlong is None:
        return rewards
    most = longest(job.workload.response_tokens)
    return rewards + overlong_penalties(batch["response_mask"], job.overlong, most)


def _with_texts(
    rows: Batch, batch: Batch, coefficient: float, updates: int, reduce_sum: ReduceSum
) -> Batch:
    """Return the rows with each update's texts after its responses; columns of theirs are zero.

    To a policy's loss their tokens are prompts: only `text_weights` tells them from padding.
    """
    tokens, present = batch["pretrain_tokens"], batch["pretrain_parts"] != PADDING
    predicted = present.clone()
    predicted[:, 0] = False  # nothing comes before the first token
    weights = coefficient * text_weights(predicted, rows["response_mask"], updates, reduce_sum)
    texts = {
        "tokens": tokens,
        "parts": present.to(rows["parts"].dtype) * PROMPT,
        "text_weights": weights,
    }
    rows = {**rows, "text_weights": torch.zeros_like(rows["tokens"], dtype=weights.dtype)}
    width = max(tokens.shape[1], rows["tokens"].shape[1])
    return {
        name: _update_by_update(
            _padded_to(column, width),
            _padded_to(texts.get(name, column.new_zeros(tokens.shape)), width),
            updates,
        )
        for name, column in rows.items()
    }


def _padded_to(column: Tensor, width: int) -> Tensor:
    return F.pad(column, (0, width - column.shape[1]))


def _update_by_update(first: Tensor, second: Tensor, updates: int) -> Tensor:
    shares = [column.view(updates, -1, column.shape[1]) for column in (first, second)]
    return torch.cat(shares, dim=1).flatten(0, 1)


def _sums(batch: Batch) -> dict[str, float]:
    """Return sums over this rank's rows for the metrics of the policy."""
    sums = {"reward_sum": batch["rewards"].sum()}
    sums["response_tokens_sum"] = batch["response_mask"].sum()
    for name in ("scores", "rule_scores", "costs", "rule_costs", "baseline_rewards"):
        if name in batch:
            sums[f"{name}_sum"] = batch[name].sum()
    if "costs" in batch or "rule_costs" in batch:
        sums["cost_sum"] = combined_costs(batch).sum()
    for name, other in (("kl_sum", "reference_log_probs"), ("teacher_kl_sum", "teacher_log_probs")):
        if other in batch:
            log_ratios = batch["log_probs"] - batch[other]
            sums[name] = (log_ratios * batch["response_mask"]).sum()
    values = torch.stack([value.float() for value in sums.values()]).tolist()
    return dict(zip(sums, values, strict=True))


def effective_settings(
    algorithm: Algorithm, settings: Hyperparameters, state: Mapping[str, float] = EMPTY
) -> Hyperparameters:
    """Return hyperparameters with the algorithm's usual ones where the job says nothing.

    Args:
        state: What the algorithm carries from iteration to iteration: an adaptive weight of the KL.
    """
    low, high = settings.clip_ratio, settings.clip_ratio_high
    low = algorithm.clip_ratio if low is None else low
    if high is None:
        high = max(low, algorithm.clip_ratio_high or 0.0)
    return replace(
        settings,
        kl_coefficient=state.get(KL_COEFFICIENT, settings.kl_coefficient),
        kl_estimator=settings.kl_estimator or algorithm.kl_estimator,
        clip_ratio=low,
        kl_in=settings.kl_in or algorithm.kl_in,
        clip_ratio_high=high,
        loss_mean=settings.loss_mean or algorithm.loss_mean,
    )


def sequence_weights(mask: Tensor, updates: int, reduce_sum: ReduceSum) -> Tensor:
    """Return weights under which every response of an update weighs the same. Shape (B, T).

    w = (T / N) / length, with the T tokens of the update's N responses over all ranks: the mean of
    the means of responses (Shao et al. 2024, GRPO, arXiv:2402.03300, eq. 3). Empty ones do not count.
    """
    lengths, share = _mean_lengths(mask, updates, reduce_sum)
    weights: Tensor = (share / lengths.clamp(min=1)).float()[:, None] * mask
    return weights


def token_sum_weights(mask: Tensor, updates: int, reduce_sum: ReduceSum) -> Tensor:
    """Return weights under which an update's loss is the mean of its responses' sums. Shape (B, T).

    w = T / N, with the T tokens of the update's N responses over all ranks. Over a constant length it is
    Dr. GRPO's (Liu et al. 2025, arXiv:2503.20783, section 3.2). Empty responses do not count.
    """
    _, share = _mean_lengths(mask, updates, reduce_sum)
    weights: Tensor = share.float()[:, None] * mask
    return weights


def _mean_lengths(mask: Tensor, updates: int, reduce_sum: ReduceSum) -> tuple[Tensor, Tensor]:
    """Return the length of each response, and T / N of its update over all ranks. Shape (B,), float64."""
    lengths = mask.sum(dim=1).double()
    tokens, sequences = _update_sums(lengths, (lengths > 0).double(), updates, reduce_sum)
    means = (tokens / sequences.clamp(min=1)).repeat_interleave(len(lengths) // updates)
    return lengths, means


def sum_weights(mask: Tensor, updates: int, reduce_sum: ReduceSum) -> Tensor:
    """Return weights under which an update's loss is the sum over its T tokens: w = T. Shape (B, T)."""
    lengths = mask.sum(dim=1).double()
    tokens, _ = _update_sums(lengths, lengths, updates, reduce_sum)
    weights: Tensor = tokens.repeat_interleave(len(lengths) // updates).float()[:, None] * mask
    return weights


def text_weights(texts: Tensor, mask: Tensor, updates: int, reduce_sum: ReduceSum) -> Tensor:
    """Return weights whose sum over an update's texts is its number of response tokens. (B, T).

    Args:
        texts: Tokens of the texts that are predicted, row by row beside the responses. (B, T').
        mask: The response tokens. (B, T).
    """
    of_texts, of_responses = texts.sum(dim=1).double(), mask.sum(dim=1).double()
    predicted, tokens = _update_sums(of_texts, of_responses, updates, reduce_sum)
    # A step without any response is normalised by 1.
    share = tokens.clamp(min=1) / predicted.clamp(min=1)
    weights: Tensor = share.repeat_interleave(len(of_texts) // updates).float()[:, None] * texts
    return weights


def _update_sums(first: Tensor, second: Tensor, updates: int, reduce_sum: ReduceSum) -> Tensor:
    """Return the sums of both over the rows of each update, on all ranks. Shape (2, updates)."""
    rows = torch.stack([first, second]).view(2, updates, -1)
    return reduce_sum(rows.sum(dim=2))
