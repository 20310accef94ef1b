"""Estimators and losses equal those of verl 0.9.1, or differ as `docs/algorithms.md` says."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlplan.algorithms import load_algorithm
from rlplan.executor.data.batches import RESPONSE, ROLLOUT_LOG_PROBS
from rlplan.executor.data.packing import pack
from rlplan.executor.learning.experience import (
    gae,
    sequence_weights,
    sum_weights,
    token_sum_weights,
)
from rlplan.executor.learning.losses import load_loss
from rlplan.executor.learning.multiplier import next_kl_coefficient
from rlplan.executor.learning.tokenwise import divergence, truncated_ratio
from rlplan.executor.passes import policy_reader
from rlplan.job import Hyperparameters
from tests.executor.advantage_cases import advantages_of, alone, random_batch
from tests.executor.test_losses import random_case
from tests.verl.verl_functions import ActorConfig, core_algos, rollout_correction, torch_functional

SEEDS = range(8)
SAMPLES = 3
LONGEST = 20
GROUPS = np.repeat(np.arange(2), SAMPLES)
PLAIN = Hyperparameters(kl_coefficient=0.0, discount=0.9, gae_lambda=0.8)
PENALISED = Hyperparameters(kl_coefficient=0.1, kl_in="reward")
ADVANTAGES = {
    "grpo": core_algos.compute_grpo_outcome_advantage,
    "rloo": core_algos.compute_rloo_outcome_advantage,
    "reinforce-plus-plus": core_algos.compute_reinforce_plus_plus_outcome_advantage,
    "reinforce-plus-plus-baseline": (
        core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage
    ),
}


def close(ours, theirs, tolerance=1e-5):
    torch.testing.assert_close(
        ours.double(), theirs.double(), rtol=tolerance, atol=tolerance * 1e-1
    )


def batch_of(seed):
    """Return a batch of responses of 1 to 6 tokens, in the float32 that trainers have."""
    batch = random_batch(seed, response_tokens=(4, 1, 6, 2, 3, 5))
    del batch["rule_scores"]
    return {key: column.float() for key, column in batch.items()}


def token_rewards(batch, coefficient=0.0, prefix=""):
    """Return verl's rewards of tokens: the sample's at its last one, less the penalties."""
    mask = batch[f"{prefix}response_mask"]
    rewards = torch.zeros_like(mask)
    last = mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
    rewards[torch.arange(len(mask)), last] = batch[f"{prefix}scores"]
    log_probs, reference = batch[f"{prefix}log_probs"], batch[f"{prefix}reference_log_probs"]
    return core_algos.compute_rewards(rewards, log_probs, reference, coefficient) * mask


def bessel(mask):
    """Return what whitening with n instead of n - 1 makes of verl's."""
    count = mask.sum()
    return math.sqrt(count / (count - 1))


@pytest.mark.parametrize("seed", SEEDS)
def test_gae_is_verls_and_whitened_without_bessels_correction(seed):
    batch = batch_of(seed)
    mask, values = batch["response_mask"], batch["values"]
    rewards = token_rewards(batch)
    theirs, returns = core_algos.compute_gae_advantage_return(rewards, values, mask, 0.9, 0.8)
    ours = advantages_of(load_algorithm("ppo"), batch, PLAIN)
    close(ours["returns"] * mask, returns * mask)
    close(ours["advantages"], theirs * mask * bessel(mask))
    holed = mask * (torch.rand(mask.shape, generator=torch.manual_seed(seed)) > 0.3)
    plain = gae(rewards * holed, values, holed.bool(), 0.9, 0.8)
    _, returns = core_algos.compute_gae_advantage_return(rewards * holed, values, holed, 0.9, 0.8)
    close(plain, (returns - values) * holed)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@pytest.mark.parametrize("seed", SEEDS)
def test_advantages_of_samples_are_verls_with_and_without_a_penalty(name, seed):
    for settings in (PLAIN, PENALISED):
        batch, penalty = batch_of(seed), settings.kl_coefficient
        mask, rewards = batch["response_mask"], token_rewards(batch, penalty)
        settings = Hyperparameters(kl_coefficient=penalty, kl_in="reward", discount=0.9)
        config = type("AlgoConfig", (), {"gamma": 0.9})()
        theirs, _ = ADVANTAGES[name](rewards, response_mask=mask, index=GROUPS, config=config)
        ours = advantages_of(load_algorithm(name), batch, settings, samples=SAMPLES)["advantages"]
        whitened = name.startswith("reinforce")
        close(ours, theirs * mask * (bessel(mask) if whitened else 1.0), 1e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_dr_grpo_is_verls_grpo_without_the_spread(seed):
    batch = batch_of(seed)
    theirs, _ = core_algos.compute_grpo_outcome_advantage(
        token_rewards(batch), batch["response_mask"], GROUPS, norm_adv_by_std_in_grpo=False
    )
    ours = advantages_of(load_algorithm("dr-grpo"), batch, PLAIN, samples=SAMPLES)
    close(ours["advantages"], theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_remax_is_verls_but_for_the_penalty_of_the_greedy_response(seed):
    batch, greedy = batch_of(seed), batch_of(seed + 100)
    batch |= {f"baseline_{key}": column for key, column in greedy.items() if key != "values"}
    mask = batch["response_mask"]
    for penalty in (0.0, 0.1):
        settings = Hyperparameters(kl_coefficient=penalty, kl_in="reward")
        theirs, _ = core_algos.compute_remax_outcome_advantage(
            token_rewards(batch, penalty), greedy["scores"], mask
        )
        ours = advantages_of(load_algorithm("remax"), batch, settings)["advantages"]
        difference = token_rewards(batch, penalty, "baseline_").sum(dim=1) - greedy["scores"]
        close(ours, (theirs - difference[:, None]) * mask)


WEIGHTS = {
    "token-mean": lambda _: None,
    "token-sum": lambda mask: sum_weights(mask, 1, alone),
    "seq-mean-token-mean": lambda mask: sequence_weights(mask, 1, alone),
    "seq-mean-token-sum": lambda mask: token_sum_weights(mask, 1, alone),
    "seq-mean-token-sum-norm": lambda mask: token_sum_weights(mask, 1, alone) / LONGEST,
}
LOSSES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "clip": ("ppo_policy", "vanilla", {}, {}),
    "clip-higher": ("ppo_policy", "vanilla", {"clip_ratio_high": 0.5}, {"high": 0.5}),
    "dual clip": ("ppo_policy", "vanilla", {"clip_ratio_dual": 1.1}, {"dual": 1.1}),
    "GSPO": ("gspo_policy", "gspo", {"clip_ratio": 0.01}, {"low": 0.01}),
    "CISPO": ("cispo_policy", "cispo", {"clip_ratio_high": 0.1}, {"high": 0.1}),
}


def policy_case(seed):
    outputs, batch = random_case(seed)
    batch["advantages"][batch["response_mask"] == 0] = 0.0
    return outputs, {key: column for key, column in batch.items() if key != "loss_weights"}


@pytest.mark.parametrize("mode", WEIGHTS)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", SEEDS[:3])
def test_policy_losses_and_their_gradients_are_verls_in_every_aggregation(seed, name, mode):
    ours_name, theirs_name, changes, config = LOSSES[name]
    outputs, batch = policy_case(seed)
    if name == "GSPO":  # one advantage for a response
        batch["advantages"] = batch["advantages"][:, :1].expand(-1, 9)
    mask, new = batch["response_mask"], outputs["log_probs"]
    weights = WEIGHTS[mode](mask)
    if weights is not None:
        batch["loss_weights"] = weights
    settings = replace(Hyperparameters(clip_ratio=0.2, kl_coefficient=0.0), **changes)
    ours, _ = load_loss(ours_name)({"log_probs": new}, batch, settings, mask.sum())
    scale = {"loss_scale_factor": LONGEST} if mode.endswith("norm") else {}
    theirs, _ = core_algos.get_policy_loss_fn(theirs_name)(
        batch["log_probs"],
        new,
        batch["advantages"],
        mask.double(),
        mode,
        ActorConfig(**config, **scale),
    )
    close(ours, theirs)
    close(torch.autograd.grad(ours, new)[0], torch.autograd.grad(theirs, new)[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_truncated_importance_weights_and_the_loss_under_them_are_verls(seed):
    outputs, batch = policy_case(seed)
    mask, old, engine = (
        batch[key] for key in ("response_mask", "log_probs", "reference_log_probs")
    )
    cap = 1.1
    theirs, _ = rollout_correction.compute_rollout_correction_weights(
        old - engine, mask.double(), rollout_is="token", rollout_is_threshold=cap
    )
    close(truncated_ratio(old, engine, mask.bool(), cap) * mask, theirs)
    settings = Hyperparameters(clip_ratio=0.2, kl_coefficient=0.0, importance_cap=cap)
    new = outputs["log_probs"]
    ours, _ = load_loss("ppo_policy")(
        {"log_probs": new}, {**batch, ROLLOUT_LOG_PROBS: engine}, settings, mask.sum()
    )
    loss, _ = core_algos.compute_policy_loss_vanilla(
        old, new, batch["advantages"], mask.double(), "token-mean", ActorConfig(), theirs
    )
    close(ours, loss)
    close(torch.autograd.grad(ours, new)[0], torch.autograd.grad(loss, new)[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_the_value_loss_and_its_gradient_are_verls(seed):
    outputs, batch = policy_case(seed)
    mask, values = batch["response_mask"], outputs["values"]
    settings = Hyperparameters(value_clip=0.3)
    ours, _ = load_loss("value")({"values": values}, batch, settings, mask.sum())
    theirs, _ = core_algos.compute_value_loss(
        values, batch["returns"], batch["values"], mask.double(), 0.3
    )
    close(ours, theirs)
    close(torch.autograd.grad(ours, values)[0], torch.autograd.grad(theirs, values)[0])


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs", "k1+", "k3+"])
@pytest.mark.parametrize("seed", SEEDS)
def test_estimates_of_the_divergence_and_their_gradients_are_verls(seed, kind):
    outputs, batch = policy_case(seed)
    new, reference = outputs["log_probs"], batch["reference_log_probs"]
    mask = torch.ones_like(new, dtype=torch.bool)
    ours = divergence(kind, new, reference, mask)
    theirs = core_algos.kl_penalty(new, reference, kind)
    close(ours, theirs)
    close(torch.autograd.grad(ours.sum(), new)[0], torch.autograd.grad(theirs.sum(), new)[0])


def test_k3_is_not_clamped_at_ten_as_verls_is():
    new, reference = torch.tensor([[-6.0]]), torch.tensor([[-1.0]])
    theirs = core_algos.kl_penalty(new, reference, "k3")
    ours = divergence("k3", new, reference, torch.ones(1, 1, dtype=torch.bool))
    assert theirs.item() == 10.0
    assert ours.item() == pytest.approx(math.exp(5) - 5 - 1)


def test_entropies_and_log_probabilities_are_verls():
    generator = torch.manual_seed(0)
    tokens = torch.randint(0, 11, (3, 7), generator=generator)
    packed = pack(tokens, torch.full_like(tokens, RESPONSE, dtype=torch.int8))
    logits = torch.randn(1, packed.tokens.shape[1], 11, generator=generator)
    ours = policy_reader(1.0, entropy=True)(logits, packed)
    entropy = torch_functional.entropy_from_logits(logits[0])
    chosen = torch_functional.logprobs_from_logits_naive(logits[0], packed.next_tokens)
    close(ours["entropy"], packed.predictions_at_tokens(entropy))
    close(ours["log_probs"], packed.predictions_at_tokens(chosen))


@pytest.mark.parametrize("kl", [0.0, 3.0, 6.0, 7.0, 60.0])
def test_an_adaptive_penalty_moves_as_verls(kl):
    controller = core_algos.AdaptiveKLController(0.2, target_kl=6.0, horizon=10_000)
    controller.update(kl, n_steps=256)
    settings = Hyperparameters(kl_target=6.0, kl_horizon=10_000)
    assert next_kl_coefficient(0.2, kl, 256, settings) == pytest.approx(controller.value)
