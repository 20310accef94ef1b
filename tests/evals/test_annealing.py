from dataclasses import replace
from random import Random
from typing import Any

import pytest

from rlplan.errors import InfeasibleError
from rlplan.evals.annealing import NeighbourDraws, search
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Rewards, Specs
from rlplan.planner.requests.specs import spec_values
from rlplan.profiles.catalog import ENGINES, load_model
from rlplan.profiles.facts import load_facts
from rlplan.rules import check_plan
from rlplan.workload import Workload

SMALL = load_model("qwen2.5-0.5b")


def job(**changes):
    fields: dict[str, Any] = {
        "algorithm": "ppo",
        "models": FrozenDict(dict.fromkeys(("actor", "critic", "reference", "reward"), SMALL)),
        "workload": Workload(prompts=64, prompt_tokens=64, response_tokens=128, updates=2),
        "cluster": (
            NodeGroup(gpu="h100-80gb-sxm", gpus_per_node=8, cpu_cores=4, inter_node_gbps=200.0),
            NodeGroup(gpu="l40s", gpus_per_node=4, inter_node_gbps=200.0),
        ),
        "engines": Engines(train="megatron-core", generate="vllm"),
        "precision": "bf16",
    }
    return Job(**(fields | changes))


def annealed(chosen, **settings):
    return search(chosen, load_facts(chosen), seconds=None, **({"steps": 60} | settings))


@pytest.fixture
def hasty(monkeypatch):
    """Begin with the best of three random plans rather than of many."""
    monkeypatch.setattr("rlplan.evals.annealing.FIRST_TRIES", 3)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
def test_every_plan_that_a_walk_meets_is_sound_by_the_checks_of_plans(seed):
    rule = Rewards(function="digits", function_seconds_per_sample=0.001)
    chosen = job(rewards=rule)
    walk = NeighbourDraws(chosen, load_facts(chosen), Random(seed), ("sync", "one-step-off"))
    state = next(found for _ in range(100) if (found := walk.first()) is not None)
    seen = set()
    for _ in range(600):
        state = walk.neighbour(state) or state
        plan = walk.plan(state, "a test")
        check_plan(plan, ENGINES)
        seen.add((len(plan.pools), plan.mode, plan.transition))
    assert {mode for _, mode, _ in seen} == {"sync", "one-step-off"}
    assert len({pools for pools, _, _ in seen}) >= 3
    assert len({transition for _, _, transition in seen} | {"two-copies"}) >= 3


@pytest.mark.full
def test_the_same_seed_and_steps_give_the_same_plan(hasty):
    first, again = annealed(job(), seed=3), annealed(job(), seed=3)
    assert first.plans == again.plans
    assert first.considered["steps"] == 60


@pytest.mark.full
def test_more_steps_find_a_plan_no_worse_than_the_first_ones():
    few = annealed(job(), steps=1).plans[0].forecast
    many = annealed(job(), steps=200).plans[0].forecast
    assert many.iteration_seconds < few.iteration_seconds


@pytest.mark.full
def test_limits_are_kept_and_only_they_allow_old_weights():
    specs = Specs(gpus=4, usd_per_hour=20.0, staleness=1)
    best = annealed(job(), specs=specs, steps=150).plans[0]
    values = spec_values(best.plan, best.forecast)
    assert values["gpus"] <= 4
    assert values["usd_per_hour"] <= 20.0
    plain = annealed(job(), steps=150).plans[0]
    assert plain.plan.mode == "sync"


def test_a_walk_that_meets_nothing_that_fits_says_so(hasty):
    with pytest.raises(InfeasibleError, match="annealing met no plan"):
        annealed(job(specs=Specs(iteration_seconds=1e-6)), steps=5)


@pytest.mark.full
def test_a_job_on_one_gpu_has_few_plans_and_the_walk_stays_among_them(hasty):
    one = job(cluster=(replace(job().cluster[0], gpus_per_node=1),))
    assert annealed(one).plans[0].plan.pools[0].gpus == 1
