import random
from typing import Any

import numpy as np
import pytest

from planner.exact.generation_bounds import least_seconds, load_of
from profiles.catalog import load_model
from profiles.facts import load_facts
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Workload
from rlplan.lengths import Lognormal, Uniform
from rlplan.plan import TaskPlan
from simulator.generation.generating import steps_of
from simulator.generation.shares import longest_shares, waits
from simulator.memory.task_memory import least_kv_bytes, useful_kv_bytes
from simulator.placed.site import site_at
from simulator.stages import task_cost
from simulator.workload.sequences import statistics_of
from tests.simulator.placing import generating

A100 = "a100-80gb-sxm"
CASES = 40


def drawn_case(generator, engine):
    mean = generator.choice([100, 400, 1000])
    lengths = generator.choice(
        [mean, Lognormal(mean=mean, std=mean, max=4 * mean), Uniform(low=1, high=2 * mean)]
    )
    model = load_model(generator.choice(["llama-2-7b", "qwen2.5-7b", "llama-2-13b"]))
    job = Job(
        algorithm="ppo",
        models=FrozenDict(dict.fromkeys(("actor", "critic", "reference"), model)),
        workload=Workload(
            prompts=generator.choice([16, 64, 256]),
            prompt_tokens=generator.choice([16, 256, 1024]),
            response_tokens=lengths,
        ),
        cluster=(NodeGroup(gpu=A100, gpus_per_node=8, nodes=4, inter_node_gbps=200.0),),
        engines=Engines(train="megatron-core", generate=engine),
        precision="bf16",
    )
    sizes = (generator.choice([1, 2, 4]), generator.choice([1, 1, 2, 4]), generator.choice([1, 2]))
    tp, pp, dp = sizes
    running = generator.choice([8, 64, 256])
    layout = TaskPlan(pool="", tp=tp, pp=pp, dp=dp, engine=engine, max_running=running)
    return job, layout, site_at(job, A100, 0, layout.gpus)


@pytest.mark.parametrize("engine", ["vllm", "vllm-0.3", "tensorrt-llm", "lmdeploy-turbomind"])
def test_no_generation_is_faster_than_its_bound_with_any_cache(engine):
    generator = random.Random(engine)
    ratios = []
    for _ in range(CASES):
        job, layout, site = drawn_case(generator, engine)
        facts = load_facts(job)
        sheet = facts.engine(engine)
        placed = generating(layout, site, job, facts)
        least, useful = least_kv_bytes(placed), useful_kv_bytes(placed)
        cache = least * (useful / least) ** generator.choice([0.3, 0.6, 0.9, 1.0])
        cost = task_cost(placed, cache)
        steps: Any = steps_of(placed)
        running = min(layout.max_running, job.workload.sequences // layout.dp)
        blocks = cache // (
            least / -(-job.workload.longest_sequence_tokens // sheet.kv_block_tokens)
        )
        wave = running if waits(sheet.batching) else 0
        shares = longest_shares(statistics_of(job.workload), layout.dp, 1, wave)
        bounds = [
            least_seconds(steps, load_of(*share), running, np.array([blocks]))[0]
            for share in shares
        ]
        ratios.append(max(bounds) / cost.total.seconds)
    assert max(ratios) <= 1
    assert max(ratios) > 0.5
