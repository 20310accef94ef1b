"""Every algorithm runs end to end, with the same losses on one process and on two pools of two."""

from dataclasses import replace

import pytest

from rlplan.algorithms import algorithm_names, load_algorithm
from rlplan.frozen import FrozenDict
from rlplan.job import Constraint, Overlong, Pretrain
from tests.executor.plans import make_job, make_plan

pytestmark = pytest.mark.ray

RUNS = {
    "rloo": {"samples_per_prompt": 2, "prompts": 4},
    "grpo": {"samples_per_prompt": 2, "prompts": 4},
    "dapo": {"samples_per_prompt": 2, "prompts": 4},
}


def job_of(name):
    """Return a small job of two updates, with every part that the algorithm can have."""
    job = make_job(name, updates=2, **RUNS.get(name, {}))
    if name == "dapo":
        return replace(job, overlong=Overlong(buffer_tokens=2))
    if name == "safe-rlhf":
        roles = ("actor", "critic", "reference", "cost", "cost_critic")
        models = FrozenDict(dict.fromkeys(roles, job.models["actor"]))
        constraint = Constraint(cost_limit=0.1, multiplier_learning_rate=0.5)
        return replace(job, models=models, pretrain=Pretrain(), constraint=constraint)
    return job


def losses(record):
    return [
        {
            name: value
            for name, value in metrics.items()
            if not name.startswith(("seconds", "stage_", "task_", "timing_", "tokens_per"))
        }
        for metrics in record.metrics
    ]


@pytest.mark.parametrize("name", algorithm_names())
def test_an_algorithm_gives_the_same_losses_wherever_it_runs(crew, name):
    job = job_of(name)
    roles = tuple(job.models)
    alone = crew.run(make_plan(job, {"p0": (1, roles)}), iterations=2)
    others = tuple(role for role in roles if role != "actor")
    pools = {"p0": (2, ("actor",)), "p1": (2, others)} if others else {"p0": (2, ("actor",))}
    apart = crew.run(make_plan(job, pools), iterations=2)
    for ours, theirs in zip(losses(alone), losses(apart), strict=True):
        assert ours.keys() == theirs.keys()
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert {"mean_reward", "policy_loss", "actor_gradient_norm"} <= set(losses(alone)[0])
    assert losses(alone)[0]["actor_gradient_norm"] > 0
    if load_algorithm(name).constrained:
        first, second = (metrics["lagrange_multiplier"] for metrics in alone.metrics)
        assert (first, second > 0) == (1.0, True)
        assert second != first
        assert {"pretrain_loss", "cost_value_loss", "mean_cost"} <= set(losses(alone)[0])
