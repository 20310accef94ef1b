"""Every algorithm runs end to end, to the same losses and weights in every layout.

PPO's layouts are in test_layouts.py.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from rlplan.algorithms import algorithm_names, load_algorithm
from rlplan.files.frozen import FrozenDict
from rlplan.job import Constraint, DynamicSampling, Overlong, Pretrain
from tests.executor.plans import make_job, make_plan
from tests.executor.weights import whole

pytestmark = pytest.mark.ray

RUNS: dict[str, dict[str, Any]] = {
    "rloo": {"samples_per_prompt": 2, "prompts": 4},
    "dr-grpo": {"samples_per_prompt": 2, "prompts": 4},
    "gspo": {"samples_per_prompt": 2, "prompts": 4},
    "cispo": {"samples_per_prompt": 2, "prompts": 4},
    "reinforce-plus-plus-baseline": {"samples_per_prompt": 2, "prompts": 4},
    "grpo": {"samples_per_prompt": 2, "prompts": 4},
    "dapo": {"samples_per_prompt": 2, "prompts": 4},
}


def job_of(name):
    """Return a small job of two updates, with every part that the algorithm can have."""
    job = make_job(name, updates=2, **RUNS.get(name, {}))
    # Adam moves a weight whose gradient is all rounding by its rate, this way or that.
    gentle = replace(job.hyperparameters, learning_rate=2e-4, critic_learning_rate=2e-4)
    job = replace(job, hyperparameters=gentle)
    if name == "dapo":
        sampling = DynamicSampling(max_rounds=2)
        return replace(job, overlong=Overlong(buffer_tokens=2), dynamic_sampling=sampling)
    if name == "remax":
        # A rule alone scores most samples as their baselines: their gradients would be all rounding.
        return replace(job, models=job.models.with_item("reward", job.models["actor"]))
    if name == "safe-rlhf":
        # Without the model's scores most rewards are 0, and a critic's first gradients all rounding.
        roles = ("actor", "critic", "reference", "reward", "cost", "cost_critic")
        models = FrozenDict(dict.fromkeys(roles, job.models["actor"]))
        constraint = Constraint(cost_limit=0.1, multiplier_learning_rate=0.5)
        return replace(job, models=models, pretrain=Pretrain(), constraint=constraint)
    return job


def losses(record):
    return [
        {
            name: value
            for name, value in metrics.items()
            if not name.startswith(
                ("seconds", "stage_", "task_", "timing_", "tokens_per", "transition_")
            )
        }
        for metrics in record.metrics
    ]


LAYOUTS: dict[str, dict[str, Any] | None] = {
    "two pools": None,
    "tp 2": {"gpus": 2, "tp": 2},
    "pp 2": {"gpus": 2, "pp": 2},
    "dp 2": {"gpus": 2},
    "fully sharded": {"gpus": 2, "zero": 3},
    "tp 2 x pp 2": {"gpus": 4, "tp": 2, "pp": 2},
    "tp 2 x dp 2": {"gpus": 4, "tp": 2},
    "pp 2 x dp 2": {"gpus": 4, "pp": 2},
    "tp 2 x pp 2 x dp 2": {"gpus": 8, "tp": 2, "pp": 2},
}


def plan_of(job, layout):
    """Return a plan with all models on one pool, or (None) with the actor on one and the rest on another."""
    roles = tuple(job.models)
    if layout is not None:
        sizes = {name: size for name, size in layout.items() if name != "gpus"}
        return make_plan(job, {"p0": (layout["gpus"], roles)}, micro_batch=2, **sizes)
    others = tuple(role for role in roles if role != "actor")
    pools = {"p0": (2, ("actor",))} | ({"p1": (2, others)} if others else {})
    return make_plan(job, pools)


ALGORITHMS = [name for name in algorithm_names() if name != "ppo"]
CASES = {f"{name}, {layout}": (name, layout) for name, layout in product(ALGORITHMS, LAYOUTS)}


@pytest.fixture
def alone(worker_pool):
    """Return what an algorithm does on one process."""

    def run(algorithm):
        job = job_of(algorithm)
        return worker_pool.run(make_plan(job, {"p0": (1, tuple(job.models))}))

    return run


@pytest.mark.full
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_learns_from_what_it_sampled(alone, name):
    first, *_, last = losses(alone(name))
    assert {"mean_reward", "policy_loss", "actor_gradient_norm"} <= set(first)
    assert first["actor_gradient_norm"] > 0
    if load_algorithm(name).resamples:
        assert first["rounds"] == 2  # most rewards of an untrained model are 0
    if load_algorithm(name).constrained:
        assert first["lagrange_multiplier"] == 1.0
        assert last["lagrange_multiplier"] != 1.0
        assert {"pretrain_loss", "cost_value_loss", "mean_cost"} <= set(first)


def test_a_penalty_without_weight_needs_no_reference(worker_pool):
    job = job_of("grpo")
    job = replace(
        job,
        models=FrozenDict({"actor": job.models["actor"]}),
        hyperparameters=replace(job.hyperparameters, kl_coefficient=0.0),
    )
    first = losses(worker_pool.run(make_plan(job, {"p0": (1, ("actor",))})))[0]
    assert first["actor_gradient_norm"] > 0
    assert not {"kl", "reference_kl"} & set(first)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_an_algorithm_gives_the_same_losses_and_weights_in_every_layout(alone, worker_pool, case):
    algorithm, layout = CASES[case]
    plan = plan_of(job_of(algorithm), LAYOUTS[layout])
    found, expected = worker_pool.run(plan), alone(algorithm)
    for ours, theirs in zip(losses(found), losses(expected), strict=True):
        assert ours.keys() == theirs.keys()
        assert ours == pytest.approx(theirs, abs=1e-4)
    update = plan.tasks["actor.update"]
    trained, weights = whole(expected.actor, 1), whole(found.actor, update.tp, update.pp)
    assert trained.keys() == weights.keys()
    for name, weight in trained.items():
        assert np.allclose(weights[name], weight, atol=1e-4), name
