"""Advantages: against plain loops and closed forms, and shares of ranks against the whole."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.advantages import Terms, compute_advantages, penalised_token_rewards
from executor.estimators import gae, group_advantages, leave_one_out_advantages, whiten
from executor.settings import effective_settings
from executor.tokenwise import response_mask
from rlplan.algorithms import load_algorithm
from rlplan.errors import PlanError
from rlplan.job import Hyperparameters, Rewards

PPO, GRPO = load_algorithm("ppo"), load_algorithm("grpo")
SETTINGS = Hyperparameters(kl_coefficient=0.1, discount=0.9, gae_lambda=0.8)


def alone(tensor):
    return tensor


def terms_of(algorithm, settings, samples=1, reduce_sum=alone, rewards=None, multiplier=0.0):
    return Terms(
        settings=effective_settings(algorithm, settings),
        samples_per_prompt=samples,
        rewards=rewards or Rewards(),
        multiplier=multiplier,
        reduce_sum=reduce_sum,
    )


def advantages_of(algorithm, batch, *terms, **more):
    """Return the batch with the advantages of an algorithm's estimator."""
    return compute_advantages(algorithm.advantage, batch, terms_of(algorithm, *terms, **more))


def random_batch(seed: int, prompt_tokens: int = 3, response_tokens=(4, 1, 6, 2, 0, 5)):
    """Return responses of several lengths after prompts of one, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    sequences, tokens = len(response_tokens), prompt_tokens + max(response_tokens)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = torch.zeros(sequences, tokens, dtype=torch.int8)
    for row, length in enumerate(response_tokens):
        mask[row, prompt_tokens : prompt_tokens + length] = 1
    return {
        "response_mask": mask,
        "log_probs": normal(sequences, tokens),
        "reference_log_probs": normal(sequences, tokens),
        "values": normal(sequences, tokens),
        "scores": normal(sequences),
        "rule_scores": normal(sequences),
    }


def slow_gae(batch, rewards, settings):
    """Return {(row, position): advantage} by the sum of eq. 16, for each token anew."""
    advantages = {}
    for row, mask in enumerate(batch["response_mask"].tolist()):
        places = [place for place, inside in enumerate(mask) if inside]
        values = [batch["values"][row, place].item() for place in places] + [0.0]
        token_rewards = [
            -settings.kl_coefficient
            * (batch["log_probs"][row, place] - batch["reference_log_probs"][row, place]).item()
            for place in places
        ]
        if places:
            token_rewards[-1] += rewards[row]
        deltas = [
            reward + settings.discount * values[index + 1] - values[index]
            for index, reward in enumerate(token_rewards)
        ]
        decay = settings.discount * settings.gae_lambda
        for index, place in enumerate(places):
            advantages[row, place] = sum(
                decay**step * delta for step, delta in enumerate(deltas[index:])
            )
    return advantages


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
