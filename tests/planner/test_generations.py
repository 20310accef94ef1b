import random
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.generations import Generation, Move, transition_for
from profiles.catalog import load_model
from profiles.facts import load_facts
from rlplan.algorithms import load_algorithm
from rlplan.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Workload
from rlplan.lengths import Lognormal, Uniform
from rlplan.plan import TaskPlan
from simulator.costs import task_cost
from simulator.site import site_at
from simulator.task_memory import least_kv_bytes, useful_kv_bytes

A100 = "a100-80gb-sxm"
GENERATE = load_algorithm("ppo").tasks[0]
MODELS = ("llama-2-7b", "qwen2.5-7b", "llama-2-13b")
CACHE_SIZES = 10
MOVE = Move(
    option=None,
    transition="none",
    seconds=0.0,
    peak_bytes=100,
    room_bytes=1000.0,
    least_bytes=10.0,
    useful_bytes=512.0,
    generate_seconds=3.0,
)


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
        cluster=(NodeGroup(gpu=A100, gpus_per_node=8),),
        precision="bf16",
        engines=Engines(train="megatron-core", generate="vllm"),
    )
    facts = load_facts(job)
    tp, dp = generator.choice([1, 2, 4]), generator.choice([1, 2])
    layout = TaskPlan(pool="", tp=tp, dp=dp, engine="vllm", max_running=256)
    site = site_at(job, A100, 0, tp * dp)
    least = least_kv_bytes("actor", layout, job, facts)
    useful = useful_kv_bytes("actor", layout, job, facts)
    shares = sorted(generator.uniform(0.3, 0.98) for _ in range(CACHE_SIZES))
    sizes = [*(least * (useful / least) ** share for share in shares), useful]
    return [
        task_cost(GENERATE, layout, site, job, facts, kv_bytes=size).total.seconds for size in sizes
    ]


def test_a_larger_cache_slows_generation_rarely_and_little():
    generator = random.Random(0)
    losses, pairs, cases = [], 0, 0
    for _ in range(30):
        seconds = preempting_case(generator)
        found = [
            larger / smaller - 1
            for index, smaller in enumerate(seconds)
            for larger in seconds[index + 1 :]
        ]
        worse = [loss for loss in found if loss > 1e-9]
        pairs, cases = pairs + len(found), cases + bool(worse)
        losses += worse
    assert pairs == 1650
    assert cases <= 10
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


def test_residents_leave_what_is_left_of_the_cache_as_far_as_it_is_of_use():
    assert MOVE.kv_bytes(600, 1000) == 400
    assert MOVE.kv_bytes(200, 1000) == 512


def test_residents_leave_nothing_to_a_sequence_or_to_the_transition():
    assert MOVE.kv_bytes(991, 2000) is None
    assert MOVE.kv_bytes(901, 1000) is None
    assert MOVE.kv_bytes(900, 1000) == 100


@given(st.floats(1, 512))
def test_costing_the_next_cache_ends_at_its_own(kv_bytes):
    chosen = Generation(MOVE, kv_bytes, 3.0, 512.0)
    for _ in range(3):
        if chosen.is_exact:
            break
        assert kv_bytes <= chosen.next_bytes < chosen.costed_bytes
        chosen = replace(chosen, costed_bytes=chosen.next_bytes)
    assert chosen.costed_bytes == kv_bytes
