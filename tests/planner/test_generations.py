import random
from dataclasses import replace
from statistics import median

import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_model
from rlplan.profiles.facts import load_facts
from rlplan.rules.flow import transition_for
from rlplan.simulator.memory.task_memory import least_kv_bytes, useful_kv_bytes
from rlplan.simulator.placed import site_at
from rlplan.simulator.stages import task_cost
from rlplan.workload import Lognormal, Uniform, Workload
from tests.cases import draws
from tests.simulator.placing import generating

A100 = "a100-80gb-sxm"
MODELS = ("llama-2-7b", "qwen2.5-7b", "llama-2-13b")
CACHE_SIZES = 10
CASES = draws(9, 30)


def preempting_case(generator):
    """Return seconds of generation by growing cache, most of them too small for all sequences."""
    mean = generator.choice([200, 500, 1000])
    lengths = generator.choice(
        [
            mean,
            Lognormal(mean=mean, std=mean * generator.choice([0.5, 1.0]), max=4 * mean),
            Uniform(low=mean // 4, high=2 * mean),
        ]
    )
    model = replace(load_model(generator.choice(MODELS)), max_positions=10**6)
    job = Job(
        algorithm="ppo",
        models=FrozenDict(dict.fromkeys(("actor", "critic", "reference"), model)),
        workload=Workload(
            prompts=generator.choice([128, 256, 512]),
            prompt_tokens=generator.choice([128, 512, 1024]),
            response_tokens=lengths,
        ),
        cluster=(NodeGroup(gpu=A100, gpus_per_node=8, inter_node_gbps=200.0),),
        precision="bf16",
        engines=Engines(train="megatron-core", generate="vllm"),
    )
    facts = load_facts(job)
    tp, dp = generator.choice([1, 2, 4]), generator.choice([1, 2])
    layout = TaskPlan(pool="", tp=tp, dp=dp, engine="vllm", max_running=256)
    site = site_at(job, A100, 0, tp * dp)
    placed = generating(layout, site, job, facts)
    least, useful = least_kv_bytes(placed), useful_kv_bytes(placed)
    shares = sorted(generator.uniform(0.3, 0.98) for _ in range(CACHE_SIZES))
    sizes = [*(least * (useful / least) ** share for share in shares), useful]
    return [task_cost(placed, size).total.seconds for size in sizes]


@pytest.mark.full
def test_a_larger_cache_slows_generation_rarely_and_little():
    generator = random.Random(0)
    losses, pairs, cases = [], 0, 0
    for _ in range(CASES):
        seconds = preempting_case(generator)
        found = [
            larger / smaller - 1
            for index, smaller in enumerate(seconds)
            for larger in seconds[index + 1 :]
        ]
        worse = [loss for loss in found if loss > 1e-9]
        pairs, cases = pairs + len(found), cases + bool(worse)
        losses += worse
    assert pairs == CASES * CACHE_SIZES * (CACHE_SIZES + 1) // 2
    assert cases <= CASES / 3
    assert len(losses) / pairs < 0.02
    assert median(losses) < 0.015
    assert max(losses) < 0.03


@pytest.mark.parametrize(
    ("train", "generate", "name"),
    [
        ((4, 2), (4, 2), "none"),
        ((4, 2), (2, 1), "hybridflow"),
        ((2, 2), (1, 2), "hybridflow"),
        ((2, 1), (4, 1), "all-gather"),
        ((4, 1), (2, 2), "all-gather"),
    ],
)
def test_the_transition_follows_from_both_layouts(train, generate, name):
    layouts = [TaskPlan(pool="p0", tp=tp, pp=pp) for tp, pp in (train, generate)]
    assert transition_for(*layouts) == name
