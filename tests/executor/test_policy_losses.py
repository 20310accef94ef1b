"""Objectives of today's algorithms: against references written here, token by token, from the papers."""

import math
import statistics
from dataclasses import replace
from itertools import groupby

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplan.algorithms import load_algorithm
from rlplan.executor.learning.experience import effective_settings, token_sum_weights
from rlplan.executor.learning.losses import load_loss
from rlplan.executor.learning.multiplier import initial_state, next_kl_coefficient, next_state
from rlplan.job import Hyperparameters
from tests.executor.advantage_cases import advantages_of, alone, random_batch
from tests.executor.plans import make_job
from tests.executor.test_losses import random_case, response_tokens

SEEDS = st.integers(0, 10_000)
ONE = torch.tensor(1.0)


def loss_of(name, outputs, batch, settings):
    """Return a loss without entropy, whose tokens all weigh alike, and its gradient by token."""
    plain = {key: column for key, column in batch.items() if key != "loss_weights"}
    total, metrics = load_loss(name)({"log_probs": outputs["log_probs"]}, plain, settings, ONE)
    (gradient,) = torch.autograd.grad(total, outputs["log_probs"])
    return total.item(), gradient, metrics


def at(batch, outputs, b, t):
    """Return the ratio, its logarithm and the advantage of a token."""
    difference = outputs["log_probs"][b, t].item() - batch["log_probs"][b, t].item()
    return math.exp(difference), difference, batch["advantages"][b, t].item()


def clamp(value, low, high):
    return min(max(value, low), high)


@given(SEEDS, st.floats(1.01, 3.0))
def test_dual_clip_bounds_what_a_bad_token_counts(seed, dual):
    """Ye et al. 2020, eq. 5: max(min(r A, clip(r) A), c A) where A < 0."""
    outputs, batch = random_case(seed)
    expected = 0.0
    for b, t in response_tokens(batch):
        ratio, _, advantage = at(batch, outputs, b, t)
        own = min(ratio * advantage, clamp(ratio, 0.8, 1.2) * advantage)
        expected -= max(own, dual * advantage) if advantage < 0 else own
    settings = Hyperparameters(clip_ratio=0.2, clip_ratio_dual=dual)
    assert loss_of("ppo_policy", outputs, batch, settings)[0] == pytest.approx(expected, abs=1e-9)


@given(SEEDS)
def test_gspo_clips_one_ratio_of_a_whole_response(seed):
    """Zheng et al. 2025, eq. 5 to 7, and the gradient of eq. 10: the mean of the tokens'."""
    outputs, batch = random_case(seed)
    batch["advantages"] = batch["advantages"][:, :1].expand(batch["advantages"].shape)
    expected, gradient = 0.0, torch.zeros_like(batch["log_probs"])
    for b, tokens in groupby(response_tokens(batch), key=lambda token: token[0]):
        places = [t for _, t in tokens]
        logs = [at(batch, outputs, b, t)[1] for t in places]
        ratio, advantage = math.exp(statistics.fmean(logs)), batch["advantages"][b, 0].item()
        clipped = clamp(ratio, 1 - 0.1, 1 + 0.2)
        expected -= min(ratio * advantage, clipped * advantage) * len(places)
        if ratio * advantage <= clipped * advantage:
            for t in places:
                gradient[b, t] = -ratio * advantage
    settings = Hyperparameters(clip_ratio=0.1, clip_ratio_high=0.2)
    found, found_gradient, _ = loss_of("gspo_policy", outputs, batch, settings)
    assert found == pytest.approx(expected, abs=1e-9)
    torch.testing.assert_close(found_gradient, gradient)


@given(SEEDS)
def test_cispo_clips_the_weight_and_keeps_every_gradient(seed):
    """MiniMax-M1, eq. 4: the gradient of log p has the weight sg(clip(r)) A, also where r is clipped."""
    outputs, batch = random_case(seed)
    expected, gradient = 0.0, torch.zeros_like(batch["log_probs"])
    for b, t in response_tokens(batch):
        ratio, _, advantage = at(batch, outputs, b, t)
        weight = clamp(ratio, 0.0, 1.3) * advantage
        expected -= weight * outputs["log_probs"][b, t].item()
        gradient[b, t] = -weight
    settings = Hyperparameters(clip_ratio=1.0, clip_ratio_high=0.3)
    found, found_gradient, _ = loss_of("cispo_policy", outputs, batch, settings)
    assert found == pytest.approx(expected, abs=1e-9)
    torch.testing.assert_close(found_gradient, gradient)


K1 = (lambda x: -x, lambda _: 1.0)
K2 = (lambda x: x * x / 2, lambda x: -x)
K3 = (lambda x: math.exp(x) - x - 1, lambda x: 1 - math.exp(x))
# By name, value and derivative by log p, where x = log(q / p) (Schulman 2020).
KL = {
    "k1": K1,
    "k2": K2,
    "k3": K3,
    "k1+": (K1[0], K2[1]),
    "k3+": (K3[0], K2[1]),
}


@pytest.mark.parametrize("kind", KL)
@given(SEEDS)
def test_kl_in_the_loss_has_the_value_and_the_gradient_of_its_estimator(kind, seed):
    outputs, batch = random_case(seed)
    batch["advantages"] = torch.zeros_like(batch["advantages"])
    value, derivative = KL[kind]
    expected, gradient = 0.0, torch.zeros_like(batch["log_probs"])
    for b, t in response_tokens(batch):
        x = (batch["reference_log_probs"][b, t] - outputs["log_probs"][b, t]).item()
        expected += 0.5 * value(x)
        gradient[b, t] = 0.5 * derivative(x)
    settings = Hyperparameters(clip_ratio=0.2, kl_in="loss", kl_coefficient=0.5, kl_estimator=kind)
    found, found_gradient, metrics = loss_of("ppo_policy", outputs, batch, settings)
    assert found == pytest.approx(expected, abs=1e-9)
    assert metrics["reference_kl"].item() == pytest.approx(2 * expected, abs=1e-9)
    torch.testing.assert_close(found_gradient, gradient)


@given(SEEDS)
def test_dr_grpo_takes_the_groups_mean_and_divides_by_no_spread(seed):
    """Liu et al. 2025, section 3.2."""
    batch = random_batch(seed)
    found = advantages_of(load_algorithm("dr-grpo"), batch, Hyperparameters(), 3, alone)
    rewards = (batch["scores"] + batch["rule_scores"]).tolist()
    for row, reward in enumerate(rewards):
        group = rewards[row // 3 * 3 :][:3]
        expected = (reward - statistics.fmean(group)) * batch["response_mask"][row]
        torch.testing.assert_close(found["advantages"][row], expected, check_dtype=False)


@given(SEEDS)
def test_reinforce_plus_plus_with_a_baseline_whitens_what_is_left_of_the_groups_mean(seed):
    """Hu 2025, section 3.2: the mean of the group, then mean and spread of the global batch's tokens."""
    batch = random_batch(seed)
    algorithm = load_algorithm("reinforce-plus-plus-baseline")
    found = advantages_of(algorithm, batch, Hyperparameters(), 2, alone)["advantages"]
    rewards = (batch["scores"] + batch["rule_scores"]).tolist()
    left = [
        reward - statistics.fmean(rewards[row // 2 * 2 :][:2]) for row, reward in enumerate(rewards)
    ]
    tokens = [left[b] for b, _ in response_tokens(batch)]
    mean, spread = statistics.fmean(tokens), statistics.pstdev(tokens)
    for b, t in response_tokens(batch):
        assert found[b, t].item() == pytest.approx((left[b] - mean) / spread, abs=1e-4)


@given(SEEDS, st.sampled_from([1, 2]))
def test_summed_tokens_are_means_over_the_responses_of_an_update(seed, updates):
    mask = torch.rand(4, 6, generator=torch.Generator().manual_seed(seed)) > 0.4
    values = torch.rand(4, 6, generator=torch.Generator().manual_seed(seed + 1))
    weights = token_sum_weights(mask, updates, alone)
    for rows in torch.arange(4).view(updates, -1):
        own = [row for row in rows.tolist() if mask[row].any()]
        expected = sum(values[row][mask[row]].sum().item() for row in own) / max(1, len(own))
        tokens = mask[rows].sum().clamp(min=1)
        found = (weights[rows] * values[rows] * mask[rows]).sum() / tokens
        assert found.item() == pytest.approx(expected, abs=1e-5)


def test_an_adaptive_penalty_grows_above_its_target_and_shrinks_below():
    """Ziegler et al. 2019, section 2.2: at most a fifth of n / horizon at a time."""
    settings = Hyperparameters(kl_target=6.0, kl_horizon=1000.0)
    for kl, expected in ((6.0, 0.5), (6.6, 0.505), (60.0, 0.51), (5.4, 0.495), (0.0, 0.49)):
        found = next_kl_coefficient(0.5, kl, 100, settings)
        assert found == pytest.approx(expected)


def test_an_adaptive_penalty_goes_from_iteration_to_iteration():
    settings = Hyperparameters(kl_coefficient=0.1, kl_target=1.0, kl_horizon=80.0)
    job, algorithm = replace(make_job(), hyperparameters=settings), load_algorithm("ppo")
    before = initial_state(algorithm, job)
    after = next_state(algorithm, job, before, {"actor.update": {"kl_sum": 80.0}})
    assert effective_settings(algorithm, settings, before).kl_coefficient == 0.1
    assert effective_settings(algorithm, settings, after).kl_coefficient == pytest.approx(0.102)
    assert initial_state(algorithm, make_job()) == {}
