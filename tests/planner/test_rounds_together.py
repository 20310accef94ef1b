"""Searches of jobs that sample more prompts than a batch has, all of them at a time."""

import random

import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.job import DynamicSampling, Engines, Job, NodeGroup, Rewards, Specs
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_model
from rlplan.profiles.facts import load_facts
from rlplan.workload import Workload
from tests.planner.test_exact import check_space

TOGETHER = DynamicSampling(together=True, expected_rounds=1.5)
MODEL = load_model("qwen2.5-0.5b")
NODE = NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=1, cpu_cores=2, inter_node_gbps=200.0)
WORK = Workload(prompts=8, samples_per_prompt=4, prompt_tokens=512, response_tokens=1024)


@pytest.mark.parametrize("spec", ["iteration_seconds", "cost_usd"])
def test_a_limit_that_the_best_plan_meets_leaves_it_the_best(spec):
    """All 48 responses have room in the cache: with that of a batch's 32 they were played to wait for one another."""
    job = Job(
        algorithm="dapo",
        models=FrozenDict(actor=MODEL),
        workload=WORK,
        cluster=(NODE,),
        engines=Engines(train="megatron-core", generate="vllm"),
        precision="bf16",
        rewards=Rewards(function="digits"),
        dynamic_sampling=TOGETHER,
    )
    facts = load_facts(job)
    free = search(job, facts, placements=1).plans[0]
    assert free.plan.tasks["actor.generate"].max_running == 48
    limit = Specs(**{spec: getattr(free.forecast, spec)})
    assert search(job, facts, specs=limit, placements=1).plans[0].forecast == free.forecast


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_the_best_plan_is_the_best_of_all_plans_where_rounds_run_together(seed):
    generator = random.Random(seed)
    for _ in range(2):
        check_space(generator, algorithm="dapo", dynamic_sampling=TOGETHER)
