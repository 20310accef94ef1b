"""Advantages: against plain loops and closed forms, and shares of ranks against the whole."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import PlanError
from rlplan.executor.learning.experience import (
    gae,
    group_advantages,
    penalised_token_rewards,
    whiten,
)
from rlplan.executor.learning.tokenwise import response_mask
from rlplan.job import Hyperparameters, Rewards
from tests.executor.advantage_cases import (
    GRPO,
    PPO,
    SETTINGS,
    advantages_of,
    alone,
    random_batch,
    slow_gae,
    terms_of,
)


@given(st.integers(0, 10_000))
def test_ppo_returns_and_whitened_advantages_equal_plain_sums_over_tokens(seed):
    batch = random_batch(seed)
    weights = Rewards(model_weight=0.5, function_weight=2.0)
    found = advantages_of(PPO, batch, SETTINGS, 1, alone, weights)
    rewards = (0.5 * batch["scores"] + 2.0 * batch["rule_scores"]).tolist()
    assert found["rewards"].tolist() == pytest.approx(rewards, rel=1e-6)

    expected = slow_gae(batch, rewards, SETTINGS)
    mean, spread = statistics.fmean(expected.values()), statistics.pstdev(expected.values())
    for (row, place), advantage in expected.items():
        value = batch["values"][row, place].item()
        assert found["returns"][row, place].item() == pytest.approx(advantage + value, abs=1e-5)
        whitened = found["advantages"][row, place].item()
        assert whitened == pytest.approx((advantage - mean) / spread, abs=1e-4)
    outside = batch["response_mask"] == 0
    assert (found["advantages"][outside] == 0).all()


def test_the_reward_comes_at_the_last_response_token():
    batch = {
        "response_mask": torch.tensor([[0, 1, 1, 0], [0, 0, 1, 1]]),
        **{key: torch.zeros(2, 4) for key in ("log_probs", "reference_log_probs", "values")},
        "scores": torch.tensor([8.0, 1.0]),
    }
    settings = Hyperparameters(discount=0.5, gae_lambda=1.0)
    found = advantages_of(PPO, batch, settings, 1, alone)
    assert found["returns"].tolist() == [[0.0, 4.0, 8.0, 0.0], [0.0, 0.0, 0.5, 1.0]]


def test_an_empty_response_has_no_token_to_reward():
    batch = {
        "response_mask": torch.tensor([[0, 0], [0, 1]]),
        **{key: torch.ones(2, 2) for key in ("log_probs", "reference_log_probs")},
    }
    batch["rewards"] = torch.tensor([5.0, 7.0])
    found = penalised_token_rewards(batch, terms_of(PPO, Hyperparameters(kl_coefficient=0.1)))
    assert found.tolist() == [[0.0, 0.0], [0.0, 7.0]]


def test_with_lambda_one_and_no_discount_an_advantage_is_the_reward_to_go_less_the_value():
    rewards = torch.tensor([[1.0, 2.0, 3.0, 99.0]])
    values = torch.tensor([[0.5, 0.25, 4.0, 99.0]])
    mask = torch.tensor([[True, True, True, False]])
    assert gae(rewards, values, mask, 1.0, 1.0).tolist() == [[5.5, 4.75, -1.0, 0.0]]


def test_with_lambda_near_zero_an_advantage_is_one_steps_temporal_difference():
    rewards, values = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.25]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    found = gae(rewards, values, mask, 0.5, 1e-12)
    assert found.tolist() == [[pytest.approx(1 + 0.125 - 0.5), pytest.approx(2 - 0.25)]]


def test_the_kl_penalty_lowers_the_reward_of_tokens_that_the_reference_finds_less_likely():
    batch = {
        "response_mask": torch.tensor([[0, 1, 1]]),
        "log_probs": torch.tensor([[0.0, -1.0, -2.0]]),
        "reference_log_probs": torch.tensor([[0.0, -3.0, -1.0]]),
        "values": torch.zeros(1, 3),
        "rule_scores": torch.tensor([1.0]),
    }
    settings = Hyperparameters(kl_coefficient=0.1, discount=1.0, gae_lambda=1.0)
    returns = advantages_of(PPO, batch, settings, 1, alone)["returns"]
    assert returns.tolist() == [[0.0, pytest.approx(0.9), pytest.approx(1.1)]]


@given(st.integers(0, 10_000), st.sampled_from([(1, 5), (2, 4), (3, 3), (0, 6)]))
def test_two_ranks_that_sum_find_what_one_process_finds(seed, shares):
    """Each rank's sums are replayed to both, as an all-reduce would."""
    batch = random_batch(seed)
    whole = advantages_of(PPO, batch, SETTINGS, 1, alone)
    parts = [
        {key: value[:first] if rank == 0 else value[first:] for key, value in batch.items()}
        for rank, first in ((0, shares[0]), (1, shares[0]))
    ]
    sums: list[torch.Tensor] = []
    for reduction in range(2):  # count and total, then squares: each needs the one before
        contributions = []
        for part in parts:
            replay = Replay(sums)
            advantages_of(PPO, part, SETTINGS, 1, replay)
            contributions.append(replay.asked[reduction])
        sums.append(sum(contributions))
    found = [advantages_of(PPO, part, SETTINGS, 1, Replay(sums)) for part in parts]
    for key in ("advantages", "returns"):
        together = torch.cat([part[key] for part in found])
        torch.testing.assert_close(together, whole[key], atol=1e-6, rtol=1e-6)


class Replay:
    """Answer the n-th reduction with a known sum, and remember what was contributed to it."""

    def __init__(self, sums):
        self.sums, self.asked = sums, []

    def __call__(self, tensor):
        self.asked.append(tensor)
        place = len(self.asked) - 1
        return self.sums[place] if place < len(self.sums) else tensor


def test_whitened_values_have_mean_zero_and_variance_one_over_the_mask():
    batch = random_batch(5)
    mask = response_mask(batch)
    inside = whiten(100 + 3 * batch["values"], mask, alone)[mask]
    assert inside.mean().item() == pytest.approx(0, abs=1e-9)
    assert inside.var(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_group_advantages_are_standard_scores_within_each_prompts_samples():
    rewards = torch.tensor([1.0, 3.0, 2.0, 10.0, 10.0, 40.0])
    found = group_advantages(rewards, 3).tolist()
    spread = math.sqrt(300.0)
    expected = [-1.0, 1.0, 0.0, -10 / spread, -10 / spread, 20 / spread]
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_group_of_equal_rewards_teaches_nothing():
    assert group_advantages(torch.full((4,), 0.3), 4).tolist() == [0.0, 0.0, 0.0, 0.0]


def test_grpo_gives_every_token_of_a_response_the_same_advantage_and_needs_no_critic():
    batch = {
        "response_mask": torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1]]),
        "rule_scores": torch.tensor([0.0, 1.0]),
    }
    found = advantages_of(GRPO, batch, SETTINGS, 2, alone)
    low, high = pytest.approx(-math.sqrt(0.5), abs=1e-5), pytest.approx(math.sqrt(0.5), abs=1e-5)
    assert found["advantages"].tolist() == [[0.0, low, low, 0.0], [0.0, high, high, high]]
    assert "returns" not in found


def test_what_stands_outside_the_response_changes_nothing():
    batch = random_batch(8)
    outside = batch["response_mask"] == 0
    spoilt = {
        key: value.masked_fill(outside, torch.nan) if value.shape == outside.shape
        and value.is_floating_point() else value
        for key, value in batch.items()
    }  # fmt: skip
    clean = advantages_of(PPO, batch, SETTINGS, 1, alone)
    found = advantages_of(PPO, spoilt, SETTINGS, 1, alone)
    for key in ("advantages", "returns"):
        assert torch.equal(found[key], clean[key])


def test_the_batch_that_was_given_stays_as_it_was():
    batch = random_batch(2)
    before = {key: value.clone() for key, value in batch.items()}
    advantages_of(PPO, batch, SETTINGS, 1, alone)
    assert set(batch) == set(before)
    assert all(torch.equal(batch[key], before[key]) for key in before)


def test_a_job_without_any_reward_is_refused():
    batch = {key: value for key, value in random_batch(0).items() if "scores" not in key}
    with pytest.raises(PlanError, match=r"rewards\.function"):
        advantages_of(PPO, batch, SETTINGS, 1, alone)


def test_a_group_of_one_sample_is_refused():
    with pytest.raises(PlanError, match="samples_per_prompt"):
        advantages_of(GRPO, random_batch(0), SETTINGS, 1, alone)
