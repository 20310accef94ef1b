"""What an update learns from: the columns of a rank's rows, with rewards, advantages and weights.

Rows are a rank's whole share of the global batch, the shares of the updates one after another; a mask (B, T) is true
on their response tokens.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from rlplan.dataflow import Algorithm
from rlplan.executor.data.batches import PADDING, PROMPT, RESPONSE
from rlplan.executor.learning.advantages import Terms, compute_advantages
from rlplan.executor.learning.multiplier import KL_COEFFICIENT, MULTIPLIER
from rlplan.executor.learning.rewards import combined_costs, combined_rewards, overlong_penalties
from rlplan.executor.parallel.meshes import ReduceSum
from rlplan.job import Hyperparameters, Job, Rewards
from rlplan.workload.lengths import longest

Batch = dict[str, Tensor]
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
        Terms(
            settings=settings,
            samples_per_prompt=job.workload.samples_per_prompt,
            rewards=job.rewards or Rewards(),
            multiplier=state.get(MULTIPLIER, 0.0),
            reduce_sum=reduce_sum,
        ),
    )
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
    return rows, _sums(batch)


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
            _widened(column, width),
            _widened(texts.get(name, column.new_zeros(tokens.shape)), width),
            updates,
        )
        for name, column in rows.items()
    }


def _widened(column: Tensor, width: int) -> Tensor:
    return F.pad(column, (0, width - column.shape[1]))


def _update_by_update(first: Tensor, second: Tensor, updates: int) -> Tensor:
    shares = [column.view(updates, -1, column.shape[1]) for column in (first, second)]
    return torch.cat(shares, dim=1).flatten(0, 1)


def _sums(batch: Batch) -> dict[str, float]:
    """Return sums over this rank's rows that say how the policy does."""
    sums = {"reward_sum": batch["rewards"].sum()}
    sums["response_tokens_sum"] = batch["response_mask"].sum()
    for name in ("scores", "rule_scores", "costs", "rule_costs", "baseline_rewards"):
        if name in batch:
            sums[f"{name}_sum"] = batch[name].sum()
    if "costs" in batch or "rule_costs" in batch:
        sums["cost_sum"] = combined_costs(batch).sum()
    if "reference_log_probs" in batch:
        log_ratios = batch["log_probs"] - batch["reference_log_probs"]
        sums["kl_sum"] = (log_ratios * batch["response_mask"]).sum()
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
