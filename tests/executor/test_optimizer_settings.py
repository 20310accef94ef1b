"""AdamW's settings and the schedule of the learning rate: torch's own numbers, and on from a checkpoint."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplan.job import Hyperparameters
from rlplan.models import LearningRateSchedule
from tests.executor.plans import TINY, make_job, make_plan
from tests.executor.test_checkpoints import (
    EXPERTS,
    assert_same,
    checkpointed_run,
    layouts_of,
    stored_weights,
)
from tests.executor.test_offloading import shard_of, step

RATE = 1e-3
ROUNDINGS = 1e-6  # a few of numbers near 1, as norms have; decay moves these by far more
SCHEDULE = LearningRateSchedule(
    warmup_iterations=1, decay="linear", iterations=5, minimum_share=0.2
)
# Of iterations 0 to 5: (1 / 2 of a warm-up), then 1 and down by 0.2 an iteration.
SHARES = [0.5, 1.0, 0.8, 0.6, 0.4, 0.2]
TUNED = Hyperparameters(
    learning_rate=RATE,
    critic_learning_rate=2 * RATE,
    schedule=SCHEDULE,
    weight_decay=0.1,
    betas=(0.8, 0.95),
    epsilon=1e-6,
)


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({}, [1.0, 1.0, 1.0]),
        ({"warmup_iterations": 3}, [0.25, 0.5, 0.75, 1.0, 1.0]),
        ({"decay": "linear", "iterations": 4}, [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ({"decay": "cosine", "iterations": 4}, [1.0, 0.853553, 0.5, 0.146447, 0.0, 0.0]),
        (
            {"decay": "cosine", "iterations": 3, "warmup_iterations": 1, "minimum_share": 0.1},
            [0.5, 1.0, 0.55, 0.1, 0.1],
        ),
    ],
)
def test_a_schedule_warms_up_and_falls(settings, shares):
    schedule = LearningRateSchedule(**settings)
    found = [schedule.share(iteration) for iteration in range(len(shares))]
    assert found == pytest.approx(shares, abs=1e-6)


@given(
    decay=st.sampled_from(["cosine", "linear"]),
    warmup=st.integers(0, 20),
    falling=st.integers(1, 50),
    least=st.floats(0, 1),
)
def test_a_rate_rises_falls_and_stays_within_its_bounds(decay, warmup, falling, least):
    schedule = LearningRateSchedule(
        decay=decay,
        warmup_iterations=warmup,
        iterations=warmup + falling,
        minimum_share=least,
    )
    shares = [schedule.share(iteration) for iteration in range(warmup + falling + 3)]
    assert shares[: warmup + 1] == sorted(shares[: warmup + 1])
    assert all(0 < share < 1 for share in shares[:warmup])
    assert shares[warmup] == 1.0
    assert shares[warmup:] == sorted(shares[warmup:], reverse=True)
    assert shares[-3:] == pytest.approx([least] * 3, abs=1e-12)


def alone_with_torch(settings, rates):
    """Return weights that torch's AdamW alone has stepped, each time with a rate."""
    shard = shard_of(RATE)
    weights = torch.nn.Parameter(shard.flat.values.clone())
    adam = torch.optim.AdamW([weights], foreach=False, **settings)
    for rate in rates:
        gradient = torch.linspace(-1, 1, len(weights))
        weights.grad = gradient * (1.0 / (gradient.norm() + 1e-6))
        for group in adam.param_groups:
            group["lr"] = rate
        adam.step()
    return weights.detach()


@pytest.mark.parametrize("zero", [0, 1])
def test_updates_are_those_of_torchs_adamw_with_the_jobs_settings(zero):
    shard = shard_of(RATE, zero)
    shard.trainer.configure(TUNED, 2)
    rates = []
    for _ in range(8):
        step(shard)
        rates.append(shard.trainer.learning_rate)
    assert rates == pytest.approx([RATE * share for share in SHARES[:4] for _ in range(2)])
    settings = {"weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-6}
    assert torch.allclose(
        shard.flat.values, alone_with_torch(settings, rates), rtol=0, atol=ROUNDINGS
    )
    other = alone_with_torch(settings | {"weight_decay": 0.0}, rates)
    assert not torch.allclose(shard.flat.values, other, rtol=0, atol=ROUNDINGS)


def test_a_job_that_says_nothing_trains_bit_for_bit_as_ever():
    silent, untouched = shard_of(RATE), shard_of(RATE)
    silent.trainer.configure(Hyperparameters(), 1)
    for _ in range(3):
        step(silent)
        step(untouched)
    assert torch.equal(silent.flat.values, untouched.flat.values)
    assert silent.trainer.learning_rate == RATE


def tuned_plan(layout, model):
    devices, sizes = layouts_of(model)[layout]
    job = replace(make_job("ppo", model=model, epochs=2, prompts=4), hyperparameters=TUNED)
    return make_plan(job, {"p0": (devices, tuple(job.models))}, micro_batch=2, **sizes)


CHAINS = {
    "tiny": (TINY, ["tp 2 x dp 2, sharded states", "dp 2, fully sharded", "one process"]),
    "experts": (EXPERTS, ["experts on two ranks", "one process"]),
}


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("chain", ["tiny", pytest.param("experts", marks=pytest.mark.full)])
def test_a_schedule_goes_on_from_a_checkpoint_in_any_layout(worker_pool, tmp_path, chain):
    model, layouts = CHAINS[chain]
    plan = tuned_plan("one process", model)
    undisturbed = worker_pool.run(plan, iterations=len(layouts)).metrics
    whole = checkpointed_run(worker_pool, plan, 0, len(layouts), folder=tmp_path / "alone")
    last = None
    for iteration, layout in enumerate(layouts):
        last = checkpointed_run(
            worker_pool,
            tuned_plan(layout, model),
            iteration,
            iteration + 1,
            start=last,
            folder=tmp_path / "chain",
        )
    for role in ("actor", "critic"):
        assert_same(stored_weights(last, role), stored_weights(whole, role), 1e-4)
    shares = SHARES[: len(layouts)]
    assert [row["actor_learning_rate"] for row in undisturbed] == pytest.approx(
        [RATE * share for share in shares]
    )
    assert [row["critic_learning_rate"] for row in undisturbed] == pytest.approx(
        [2 * RATE * share for share in shares]
    )
