"""Estimators of the algorithms after PPO and GRPO: against plain loops and the papers' formulas."""

import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplan.algorithms import load_algorithm
from rlplan.executor.learning.experience import leave_one_out_advantages, make_experience
from rlplan.job import Hyperparameters, Rewards
from tests.executor.advantage_cases import (
    PPO,
    SETTINGS,
    advantages_of,
    random_batch,
    slow_gae,
)
from tests.executor.plans import make_job


def places_of(batch, row, prefix=""):
    mask = batch[f"{prefix}response_mask"][row].tolist()
    return [place for place, inside in enumerate(mask) if inside]


def penalty_at(batch, row, place, prefix=""):
    """Return -b log(policy / reference) of one token, with b = 0.1."""
    policy, reference = batch[f"{prefix}log_probs"], batch[f"{prefix}reference_log_probs"]
    return -0.1 * (policy[row, place] - reference[row, place]).item()


@given(st.integers(0, 10_000))
def test_rloo_compares_penalised_rewards_with_the_mean_of_the_others(seed):
    batch = random_batch(seed)
    found = advantages_of(load_algorithm("rloo"), batch, SETTINGS, 3)["advantages"]
    penalised = [
        (batch["scores"] + batch["rule_scores"])[row].item()
        + sum(penalty_at(batch, row, place) for place in places_of(batch, row))
        for row in range(6)
    ]
    for row in range(6):
        group = range(row // 3 * 3, row // 3 * 3 + 3)
        others = statistics.fmean(penalised[other] for other in group if other != row)
        for place in range(found.shape[1]):
            expected = penalised[row] - others if place in places_of(batch, row) else 0.0
            assert found[row, place].item() == pytest.approx(expected, abs=1e-5)


def test_leave_one_out_advantages_are_known_numbers():
    rewards = torch.tensor([1.0, 2.0, 6.0, 5.0, 5.0, 5.0])
    assert leave_one_out_advantages(rewards, 3).tolist() == [-3.0, -1.5, 4.5, 0.0, 0.0, 0.0]


@given(st.integers(0, 10_000))
def test_reinforce_plus_plus_whitens_the_discounted_penalised_rewards_to_go(seed):
    batch = random_batch(seed)
    found = advantages_of(load_algorithm("reinforce-plus-plus"), batch, SETTINGS)["advantages"]
    returns = {}
    for row in range(6):
        places = places_of(batch, row)
        rewards = [penalty_at(batch, row, place) for place in places]
        if places:
            rewards[-1] += (batch["scores"] + batch["rule_scores"])[row].item()
        for index, place in enumerate(places):
            returns[row, place] = sum(0.9**k * each for k, each in enumerate(rewards[index:]))
    mean, spread = statistics.fmean(returns.values()), statistics.pstdev(returns.values())
    for (row, place), value in returns.items():
        assert found[row, place].item() == pytest.approx((value - mean) / spread, abs=1e-4)


def with_greedy(batch, seed):
    """Return a batch with greedy responses of other lengths, padded to another width."""
    greedy = random_batch(seed, prompt_tokens=2, response_tokens=(2, 5, 1, 3, 4, 0))
    return batch | {f"baseline_{key}": value for key, value in greedy.items()}


@given(st.integers(0, 10_000))
def test_remax_subtracts_the_return_of_the_greedy_response(seed):
    batch = with_greedy(random_batch(seed), seed + 1)
    found = advantages_of(load_algorithm("remax"), batch, SETTINGS)["advantages"]

    def returns(row, prefix):
        places = places_of(batch, row, prefix)
        rewards = [penalty_at(batch, row, place, prefix) for place in places]
        if places:
            total = batch[f"{prefix}scores"] + batch[f"{prefix}rule_scores"]
            rewards[-1] += total[row].item()
        return [
            sum(0.9**k * each for k, each in enumerate(rewards[i:])) for i in range(len(places))
        ]

    for row in range(6):
        baseline = (returns(row, "baseline_") or [0.0])[0]
        for place, value in zip(places_of(batch, row), returns(row, ""), strict=True):
            assert found[row, place].item() == pytest.approx(value - baseline, abs=1e-5)


def test_remax_without_a_penalty_weighs_all_tokens_with_the_difference_of_rewards():
    """Algorithm 1 of the paper, to the letter."""
    batch = {
        "response_mask": torch.tensor([[0, 1, 1]]),
        "baseline_response_mask": torch.tensor([[0, 1, 0]]),
        "rule_scores": torch.tensor([0.75]),
        "baseline_rule_scores": torch.tensor([0.5]),
    }
    settings = Hyperparameters(kl_in="none")
    found = advantages_of(load_algorithm("remax"), batch, settings)
    assert found["advantages"].tolist() == [[0.0, 0.25, 0.25]]


def with_costs(batch, seed):
    other = random_batch(seed)
    return batch | {
        "costs": other["scores"],
        "rule_costs": other["rule_scores"],
        "cost_values": other["values"],
    }


@given(st.integers(0, 10_000), st.floats(0.01, 20))
def test_safe_rlhf_weighs_rewards_against_costs_by_the_multiplier(seed, multiplier):
    """Half of the KL penalty lowers the reward, half raises the cost."""
    safe = load_algorithm("safe-rlhf")
    batch = with_costs(random_batch(seed), seed + 1)
    found = advantages_of(safe, batch, SETTINGS, multiplier=multiplier)
    half = Hyperparameters(kl_coefficient=0.05, discount=0.9, gae_lambda=0.8)
    rewards = slow_gae(batch, (batch["scores"] + batch["rule_scores"]).tolist(), half)
    charged = batch | {
        "values": batch["cost_values"],
        "log_probs": batch["reference_log_probs"],
        "reference_log_probs": batch["log_probs"],
    }
    costs = slow_gae(charged, (batch["costs"] + batch["rule_costs"]).tolist(), half)
    combined = {at: (rewards[at] - multiplier * costs[at]) / (1 + multiplier) for at in rewards}
    mean, spread = statistics.fmean(combined.values()), statistics.pstdev(combined.values())
    for (row, place), value in combined.items():
        returned = rewards[row, place] + batch["values"][row, place].item()
        charged_return = costs[row, place] + batch["cost_values"][row, place].item()
        assert found["returns"][row, place].item() == pytest.approx(returned, abs=1e-5)
        assert found["cost_returns"][row, place].item() == pytest.approx(charged_return, abs=1e-5)
        assert found["advantages"][row, place].item() == pytest.approx(
            (value - mean) / spread, abs=1e-3
        )


def test_one_critic_of_reward_and_cost_learns_their_combination():
    batch = {
        "response_mask": torch.tensor([[0, 1]]),
        "values": torch.zeros(1, 2),
        "rule_scores": torch.tensor([3.0]),
        "rule_costs": torch.tensor([1.0]),
    }
    settings = Hyperparameters(kl_in="none")
    found = advantages_of(load_algorithm("safe-rlhf"), batch, settings, multiplier=2.0)
    assert found["returns"].tolist() == [[0.0, pytest.approx(1 / 3)]]
    assert "cost_returns" not in found


def test_a_kl_penalty_in_the_loss_leaves_the_rewards_alone():
    batch = random_batch(4)
    in_loss = Hyperparameters(kl_coefficient=0.1, kl_in="loss")
    without = Hyperparameters(kl_coefficient=0.0)
    ours, plain = (advantages_of(PPO, batch, settings) for settings in (in_loss, without))
    assert torch.equal(ours["returns"], plain["returns"])


@pytest.mark.parametrize(("algorithm", "alike"), [("grpo", 2.0), ("rloo", 2.0), ("ppo", None)])
def test_samples_whose_prompt_has_one_reward_for_all_are_counted_where_they_are_compared(
    algorithm, alike
):
    job = replace(
        make_job(algorithm, prompts=2, samples_per_prompt=2), rewards=Rewards(function="digits")
    )
    parts = torch.tensor([[1, 2]]).repeat(4, 1)
    columns = {"tokens": parts, "parts": parts, "rule_scores": torch.tensor([0.1, 0.1, 0.0, 1.0])}
    for name in ("log_probs", "reference_log_probs", "values"):
        columns[name] = torch.zeros(4, 2)
    _, sums = make_experience(job, load_algorithm(algorithm), columns, {}, lambda each: each)
    assert sums.get("equal_rewards_sum") == alike
