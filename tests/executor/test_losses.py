"""Losses: against plain loops over tokens, and parts of a batch against the whole."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rlplan.executor.learning.losses
from rlplan.algorithms import algorithm_names, load_algorithm
from rlplan.errors import UnknownNameError
from rlplan.executor.learning.losses import load_loss, loss_names
from rlplan.job import Hyperparameters

SETTINGS = Hyperparameters(
    clip_ratio=0.2, value_clip=0.3, kl_coefficient=0.05, entropy_coefficient=0.01
)
GRPO = replace(SETTINGS, kl_in="loss")
OUTPUTS = {
    "gspo_policy": ("log_probs", "entropy"),
    "cispo_policy": ("log_probs", "entropy"),
    "ppo_policy": ("log_probs", "entropy"),
    "ppo_ptx_policy": ("log_probs", "entropy"),
    "value": ("values",),
    "cost_value": ("values",),
}


def random_case(seed: int, sequences: int = 5, tokens: int = 9):
    generator = torch.Generator().manual_seed(seed)

    def normal():
        return torch.randn(sequences, tokens, generator=generator, dtype=torch.float64)

    old = -normal().abs()
    batch = {
        "response_mask": (normal() > 0).to(torch.int8),
        "log_probs": old,
        "reference_log_probs": old + 0.3 * normal(),
        "values": normal(),
        "advantages": normal(),
        "returns": normal(),
        "cost_values": normal(),
        "cost_returns": normal(),
        "loss_weights": normal().abs(),
    }
    outputs = {
        "log_probs": old + 0.3 * normal(),
        "entropy": normal().abs(),
        "values": (batch["values"] + batch["cost_values"]) / 2 + 0.4 * normal(),
    }
    return {key: value.requires_grad_() for key, value in outputs.items()}, batch


def response_tokens(batch):
    return [(int(b), int(t)) for b, t in batch["response_mask"].nonzero()]


def slow_policy_loss(outputs, batch, kl_coefficient, high=0.2):
    """Token by token, with Python's own floats: eq. 7 and 9 of PPO, eq. 3 and 4 of GRPO, 8 of DAPO."""
    total = 0.0
    for b, t in response_tokens(batch):
        new, old = outputs["log_probs"][b, t].item(), batch["log_probs"][b, t].item()
        reference = batch["reference_log_probs"][b, t].item()
        advantage, ratio = batch["advantages"][b, t].item(), math.exp(new - old)
        own = -min(ratio * advantage, min(max(ratio, 0.8), 1 + high) * advantage)
        own -= 0.01 * outputs["entropy"][b, t].item()
        own += kl_coefficient * (math.exp(reference - new) - (reference - new) - 1)
        total += own * batch["loss_weights"][b, t].item()
    return total


def slow_decoupled_loss(outputs, batch, cap):
    """Token by token: AReaL's eq. with truncated weights, without KL and entropy."""
    total = 0.0
    for b, t in response_tokens(batch):
        new, old = outputs["log_probs"][b, t].item(), batch["log_probs"][b, t].item()
        weight = min(math.exp(old - batch["rollout_log_probs"][b, t].item()), cap)
        advantage, ratio = batch["advantages"][b, t].item(), math.exp(new - old)
        own = -min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
        total += weight * own * batch["loss_weights"][b, t].item()
    return total


@given(st.integers(0, 10_000), st.floats(0.1, 4.0))
def test_decoupled_ppo_equals_a_plain_loop_and_is_ppo_where_engine_and_trainer_agree(seed, cap):
    outputs, batch = random_case(seed)
    noise = torch.randn(batch["log_probs"].shape, generator=torch.Generator().manual_seed(seed + 1))
    batch["rollout_log_probs"] = batch["log_probs"] + 0.5 * noise
    settings = replace(SETTINGS, entropy_coefficient=0.0, importance_cap=cap)
    found, metrics = load_loss("ppo_policy")(outputs, batch, settings, torch.tensor(7.0))
    assert found.item() == pytest.approx(slow_decoupled_loss(outputs, batch, cap) / 7.0, abs=1e-9)
    assert metrics["importance_weight"].requires_grad is False

    batch["rollout_log_probs"] = batch["log_probs"]
    agreed, _ = load_loss("ppo_policy")(outputs, batch, settings, torch.tensor(7.0))
    plain, _ = load_loss("ppo_policy")(
        outputs, batch, replace(settings, importance_cap=None), torch.tensor(7.0)
    )
    assert agreed.item() == pytest.approx(min(1.0, cap) * plain.item(), abs=1e-9)


def slow_value_loss(outputs, batch, prefix=""):
    total = 0.0
    for b, t in response_tokens(batch):
        new, old = outputs["values"][b, t].item(), batch[f"{prefix}values"][b, t].item()
        target = batch[f"{prefix}returns"][b, t].item()
        clipped = min(max(new, old - 0.3), old + 0.3)
        total += max((new - target) ** 2, (clipped - target) ** 2) / 2
    return total


@given(st.integers(0, 10_000))
def test_each_loss_equals_a_plain_loop_over_tokens(seed):
    outputs, batch = random_case(seed)
    normalizer = torch.tensor(7.0)
    higher = replace(SETTINGS, clip_ratio_high=0.28)
    expected = [
        ("ppo_policy", SETTINGS, slow_policy_loss(outputs, batch, kl_coefficient=0.0)),
        ("ppo_policy", GRPO, slow_policy_loss(outputs, batch, kl_coefficient=0.05)),
        ("ppo_policy", higher, slow_policy_loss(outputs, batch, 0.0, high=0.28)),
        ("value", SETTINGS, slow_value_loss(outputs, batch)),
        ("cost_value", SETTINGS, slow_value_loss(outputs, batch, "cost_")),
    ]
    for name, settings, slow in expected:
        loss, _ = load_loss(name)(outputs, batch, settings, normalizer)
        assert loss.item() == pytest.approx(slow / 7.0, abs=1e-9), name


@given(st.integers(0, 10_000))
def test_mixed_in_texts_add_their_weighed_negative_log_likelihood(seed):
    outputs, batch = random_case(seed)
    texts = (torch.rand(batch["log_probs"].shape) > 0.5) & (batch["response_mask"] == 0)
    batch["text_weights"] = 1.5 * texts
    plain, _ = load_loss("ppo_policy")(outputs, batch, SETTINGS, torch.tensor(7.0))
    mixed, metrics = load_loss("ppo_ptx_policy")(outputs, batch, SETTINGS, torch.tensor(7.0))
    likelihood = sum(outputs["log_probs"][b, t].item() for b, t in texts.nonzero().tolist())
    assert metrics["pretrain_loss"].item() == pytest.approx(-1.5 * likelihood / 7.0, abs=1e-9)
    assert (mixed - plain).item() == pytest.approx(-1.5 * likelihood / 7.0, abs=1e-9)


@pytest.mark.parametrize("name", OUTPUTS)
def test_losses_metrics_and_gradients_of_parts_add_up_to_those_of_the_batch(name):
    outputs, batch = random_case(3, sequences=6)
    normalizer = batch["response_mask"].sum()
    whole, metrics = load_loss(name)(outputs, batch, SETTINGS, normalizer)
    gradients = torch.autograd.grad(whole, [outputs[key] for key in OUTPUTS[name]])

    sums, part_gradients = {"loss": 0.0}, [torch.zeros_like(each) for each in gradients]
    for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):
        part_outputs = {key: value[rows] for key, value in outputs.items()}
        part = {key: value[rows] for key, value in batch.items()}
        loss, values = load_loss(name)(part_outputs, part, SETTINGS, normalizer)
        sums["loss"] += loss.item()
        for key, value in values.items():
            sums[key] = sums.get(key, 0.0) + value.item()
        found = torch.autograd.grad(loss, [outputs[key] for key in OUTPUTS[name]])
        part_gradients = [a + b for a, b in zip(part_gradients, found, strict=True)]

    expected = {"loss": whole.item(), **{key: value.item() for key, value in metrics.items()}}
    assert sums == pytest.approx(expected, abs=1e-6)
    for ours, theirs in zip(part_gradients, gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", OUTPUTS)
def test_what_stands_outside_the_response_changes_nothing(name):
    outputs, batch = random_case(11)
    normalizer = torch.tensor(1.0)
    expected, _ = load_loss(name)(outputs, batch, SETTINGS, normalizer)
    outside = batch["response_mask"] == 0
    spoilt = {
        key: value.detach().masked_fill(outside, torch.nan).requires_grad_()
        for key, value in outputs.items()
    }
    spoilt_batch = {
        key: value.masked_fill(outside, torch.inf) if value.is_floating_point() else value
        for key, value in batch.items()
    }
    found, metrics = load_loss(name)(spoilt, spoilt_batch, SETTINGS, normalizer)
    assert found.item() == expected.item()
    assert all(torch.isfinite(value) for value in metrics.values())
    found.backward()
    for key in OUTPUTS[name]:
        assert torch.isfinite(spoilt[key].grad).all()
        assert (spoilt[key].grad[outside] == 0).all()


def one_token(**entries):
    return {key: torch.tensor([[value]]) for key, value in entries.items()}


def test_a_ratio_beyond_the_clip_earns_no_gradient_where_it_would_gain():
    batch = one_token(response_mask=1, log_probs=-2.0, advantages=1.0)
    outputs = one_token(log_probs=-2.0 + math.log(1.5), entropy=0.0)
    outputs["log_probs"].requires_grad_()
    settings = Hyperparameters(clip_ratio=0.2)
    loss, metrics = load_loss("ppo_policy")(outputs, batch, settings, torch.tensor(1))
    loss.backward()
    assert loss.item() == pytest.approx(-1.2)
    assert metrics["clip_fraction"].item() == 1.0
    assert outputs["log_probs"].grad.item() == 0.0


def test_the_first_update_on_fresh_samples_is_the_plain_policy_gradient():
    """At ratio 1 the surrogate's gradient is the advantage, and nothing is clipped or diverges."""
    batch = {
        "response_mask": torch.tensor([[0, 1, 1]]),
        "log_probs": torch.tensor([[0.0, -1.0, -3.0]]),
        "advantages": torch.tensor([[0.0, 2.0, -4.0]]),
    }
    outputs = {"log_probs": batch["log_probs"].clone().requires_grad_()}
    loss, metrics = load_loss("ppo_policy")(
        outputs, batch, Hyperparameters(clip_ratio=0.2), torch.tensor(2)
    )
    loss.backward()
    assert loss.item() == 1.0
    assert outputs["log_probs"].grad.tolist() == [[0.0, -1.0, 2.0]]
    assert {key: value.item() for key, value in metrics.items()} == {
        "policy_loss": 1.0,
        "clip_fraction": 0.0,
        "approx_kl": 0.0,
    }


def test_a_policy_that_collapsed_gives_a_finite_loss():
    batch = one_token(response_mask=1, log_probs=-200.0, reference_log_probs=-1.0, advantages=-1.0)
    outputs = one_token(log_probs=-0.0, entropy=0.0)
    loss, metrics = load_loss("ppo_policy")(outputs, batch, GRPO, torch.tensor(1))
    assert torch.isfinite(loss)
    assert all(torch.isfinite(value) for value in metrics.values())


def test_the_divergence_from_the_reference_is_a_term_where_the_settings_say_so():
    batch = one_token(response_mask=1, log_probs=-1.0, reference_log_probs=-2.0, advantages=0.0)
    outputs = one_token(log_probs=-1.0, entropy=0.0)
    k3 = math.exp(-1.0) + 1.0 - 1.0
    grpo, metrics = load_loss("ppo_policy")(outputs, batch, GRPO, torch.tensor(1))
    ppo, _ = load_loss("ppo_policy")(outputs, batch, SETTINGS, torch.tensor(1))
    assert metrics["reference_kl"].item() == pytest.approx(k3)
    assert grpo.item() == pytest.approx(0.05 * k3)
    assert ppo.item() == 0.0


def test_losses_are_the_files_of_their_folder_and_serve_every_algorithm():
    files = Path(rlplan.executor.learning.losses.__file__).parent.glob("*.py")
    assert list(loss_names()) == sorted(path.stem for path in files if path.stem != "__init__")
    used = {task.loss for name in algorithm_names() for task in load_algorithm(name).tasks}
    assert used - {None} <= set(loss_names())


def test_an_unknown_loss_names_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'value'"):
        load_loss("valeu")


def test_clip_higher_lets_unlikely_tokens_grow_further():
    """Ratio 1.25: beyond 1 + 0.2, within 1 + 0.28 (DAPO, section 3.1)."""
    batch = one_token(response_mask=1, log_probs=-2.0, advantages=1.0)
    outputs = one_token(log_probs=-2.0 + math.log(1.25))
    outputs["log_probs"].requires_grad_()
    settings = Hyperparameters(clip_ratio=0.2, clip_ratio_high=0.28)
    loss, metrics = load_loss("ppo_policy")(outputs, batch, settings, torch.tensor(1))
    loss.backward()
    assert loss.item() == pytest.approx(-1.25)
    assert metrics["clip_fraction"].item() == 0.0
    assert outputs["log_probs"].grad.item() == pytest.approx(-1.25)
