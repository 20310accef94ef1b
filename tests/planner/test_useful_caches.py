"""What a search calls a cache beyond which more is of no use is one: generation takes as long with twice as much."""

from dataclasses import replace

import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Rewards, Specs, Speculation
from rlplan.planner.exact.space import Space
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_model
from rlplan.profiles.facts import load_facts
from rlplan.workload import Environment, Workload

MODEL = load_model("qwen2.5-1.5b")
JOB = Job(
    algorithm="grpo",
    models=FrozenDict(actor=MODEL, reference=MODEL),
    workload=Workload(
        prompts=16, samples_per_prompt=8, prompt_tokens=300, response_tokens=2000
    ),
    cluster=(NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=2, cpu_cores=8, inter_node_gbps=200.0),),
    engines=Engines(train="megatron-core", generate="vllm-0.11"),
    rewards=Rewards(function="digits", function_seconds_per_sample=0.001),
    precision="bf16",
)  # fmt: skip
TURNS = Environment(name="tool", turns=4, observation_tokens=800, step_seconds=20.0)
KINDS = {
    "plain": JOB,
    "layers that guess": replace(JOB, speculation=Speculation(draft_tokens=3, acceptance=0.6)),
    "a model that guesses": replace(
        JOB, speculation=Speculation(draft_tokens=3, acceptance=0.6, draft=load_model("qwen2.5-0.5b"))
    ),
    "episodes that wait": replace(JOB, workload=replace(JOB.workload, environments=(TURNS,))),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_the_useful_cache_makes_no_generation_faster(kind):
    job = KINDS[kind]
    space = Space(job, load_facts(job), FrozenDict(), "throughput", Specs())
    table = space.generations
    every = [each for share in space.shares for each in table.replicas(space.site(share))]
    assert len({each.layout.max_running for each in every}) > 1
    for each in every:
        useful, more = (table.seconds(each, times * each.useful_bytes) for times in (1, 2))
        assert useful == more


def test_a_limit_that_the_best_plan_meets_leaves_it_the_best_where_a_model_guesses():
    """Its cache has the draft's tokens too: without these a cache for all responses was played to let some wait."""
    job = KINDS["a model that guesses"]
    facts = load_facts(job)
    free = search(job, facts, placements=1).plans[0]
    limit = Specs(iteration_seconds=free.forecast.iteration_seconds)
    assert search(job, facts, specs=limit, placements=1).plans[0].forecast == free.forecast
