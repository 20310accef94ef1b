import random
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup
from rlplan.plan import TaskPlan
from rlplan.planner.exact.generation_bounds import (
    BoundedSettings,
    Contexts,
    _cache_seconds,
    floors_under,
    least_seconds,
    load_of,
    steps_in_turn,
)
from rlplan.profiles.catalog import load_device, load_engine, load_model
from rlplan.profiles.facts import DeviceFacts, load_facts
from rlplan.simulator.costs.setting import setting_on
from rlplan.simulator.generation.generating import steps_of
from rlplan.simulator.generation.prices import ReplicaSetting, engine_steps
from rlplan.simulator.generation.shares import longest_shares, waits
from rlplan.simulator.memory.task_memory import least_kv_bytes, useful_kv_bytes
from rlplan.simulator.placed import Site, site_at
from rlplan.simulator.stages import task_cost
from rlplan.simulator.workload import statistics_of
from rlplan.workload import Lognormal, Uniform, Workload
from tests.cases import draws
from tests.simulator.placing import generating

A100 = "a100-80gb-sxm"
CASES = draws(12, 40)


DENSE = ("llama-2-7b", "qwen2.5-7b", "llama-2-13b")
EXPERTS = ("qwen3-30b-a3b", "mixtral-8x7b", "moonlight-16b-a3b")


def drawn_case(generator, engine, models=DENSE):
    mean = generator.choice([100, 400, 1000])
    lengths = generator.choice(
        [mean, Lognormal(mean=mean, std=mean, max=4 * mean), Uniform(low=1, high=2 * mean)]
    )
    model = load_model(generator.choice(models))
    job = Job(
        algorithm="ppo",
        models=FrozenDict(dict.fromkeys(("actor", "critic", "reference"), model)),
        workload=Workload(
            prompts=generator.choice([16, 64, 256]),
            samples_per_prompt=4 if load_engine(engine).shares_prompts else 1,
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
    ep = generator.choice([1, dp]) if model.num_experts else 1
    layout = TaskPlan(pool="", tp=tp, pp=pp, dp=dp, ep=ep, engine=engine, max_running=running)
    return job, layout, site_at(job, A100, 0, layout.gpus)


def ratio_of(generator, engine, models):
    """Return the largest bound of a drawn generation over what it takes."""
    job, layout, site = drawn_case(generator, engine, models)
    facts = load_facts(job)
    sheet = facts.engine(engine)
    placed = generating(layout, site, job, facts)
    least, useful = least_kv_bytes(placed), useful_kv_bytes(placed)
    cache = least * (useful / least) ** generator.choice([0.3, 0.6, 0.9, 1.0])
    cost = task_cost(placed, cache)
    steps: Any = steps_of(placed)
    running = min(layout.max_running, job.workload.sequences // layout.dp)
    blocks = cache // (least / -(-job.workload.longest_sequence_tokens // sheet.kv_block_tokens))
    wave = running if waits(sheet.batching) else 0
    samples = job.workload.samples_per_prompt
    shares = longest_shares(statistics_of(job.workload), layout.dp, samples, wave)
    loads = [load_of(*share, samples, sheet.kv_block_tokens) for share in shares]
    bounds = [
        least_seconds(steps, load, BoundedSettings(running), np.array([blocks]))[0]
        for load in loads
    ]
    # What holds for twice as many that may run, some waiting all the same, holds for these too.
    wider = BoundedSettings(2 * running, waits=True)
    bounds += [least_seconds(steps, load, wider, np.array([blocks]))[0] for load in loads]
    return max(bounds) / cost.total.seconds


@pytest.mark.full
@pytest.mark.parametrize(
    "engine", ["vllm", "vllm-0.3", "vllm-0.11", "tensorrt-llm", "lmdeploy-turbomind"]
)
def test_no_generation_is_faster_than_its_bound_with_any_cache(engine):
    generator = random.Random(engine)
    ratios = [ratio_of(generator, engine, DENSE) for _ in range(CASES)]
    assert max(ratios) <= 1
    assert max(ratios) > 0.5


@pytest.mark.parametrize("engine", ["vllm", "vllm-0.3", "vllm-0.15"])
def test_bounds_are_near_where_few_tokens_reach_few_experts(engine):
    generator = random.Random(engine)
    ratios = [ratio_of(generator, engine, EXPERTS) for _ in range(CASES // 2)]
    assert max(ratios) <= 1
    assert median(ratios) > 0.7


@given(
    st.lists(st.floats(min_value=0.01, max_value=100), min_size=4, max_size=12),
    st.floats(min_value=0.01, max_value=0.99),
    st.floats(min_value=0, max_value=1),
    st.floats(min_value=0, max_value=1),
)
def test_floors_lie_below_any_step_whatever_it_computes_of_prompts(seconds, most, own, more):
    tokens = np.array([1, 2, 3, 4, 6, 9, 13, 20, 30, 45, 70, 100][: len(seconds)], dtype=float)
    most *= tokens[-2]
    floors = floors_under(tokens, np.array(seconds), most)
    sequences = own * most
    others = more * (tokens[-1] - sequences)
    below = floors.base + floors.slope * sequences
    below = below + floors.weights @ np.minimum(sequences, floors.corners)
    step = np.interp(sequences + others, tokens, seconds)
    rounding = 1e-9 * max(seconds)
    assert (floors.base >= -rounding).all()
    assert (floors.weights >= -rounding).all()
    assert (below + floors.beyond * others <= step + rounding).all()
    assert (below[:, None] + floors.steeper * others - floors.less <= step + rounding).all()


@given(
    st.lists(st.integers(min_value=1, max_value=30), min_size=1, max_size=20),
    st.integers(min_value=1, max_value=8),
    st.integers(min_value=0, max_value=1000),
)
def test_steps_give_many_sequences_tokens_as_often_as_contexts_say(responses, running, seed):
    generator = random.Random(seed)
    prompts = [generator.randint(1, 20) for _ in responses]
    contexts: Contexts = load_of(tuple(prompts), tuple(responses)).contexts
    # In turn, now and then later than they might, whoever runs is given a token in most steps.
    waiting, ends, steps = list(range(len(responses))), {}, []
    while waiting or ends:
        while waiting and len(ends) < running and generator.random() < 0.8:
            begun = waiting.pop(0)
            ends[begun] = prompts[begun]
        given_to = [each for each in ends if generator.random() < 0.9]
        steps.append([ends[each] for each in given_to])
        for each in given_to:
            ends[each] += 1
            if ends[each] == prompts[each] + responses[each]:
                del ends[each]
    assert len(steps) >= steps_in_turn(contexts, running)
    numbers = np.arange(1.0, running + 1)
    together = np.array([sum(min(len(each), k) for each in steps) for k in numbers])
    cache = np.array([float(max(map(sum, steps)) or 1)])
    assert (contexts.side_by_side(numbers) <= together + 1e-9).all()
    assert (contexts.in_cache(numbers, cache)[0] <= together + 1e-9).all()


def decode_steps(model, engine):
    sheet = load_engine(engine)
    setting = setting_on(
        TaskPlan(pool="", tp=8, engine=engine),
        sheet,
        DeviceFacts(load_device("h200")),
        Site("h200", 8, 8, 5e10),
        "bf16",
        cache_value_bytes=2,
    )
    return engine_steps(ReplicaSetting(load_model(model), sheet, setting))


@given(
    model=st.sampled_from(
        ["deepseek-v3.2", "glm-5.2", "minimax-m3", "deepseek-v3", "gpt-oss-120b"]
    ),
    engine=st.sampled_from(["vllm-0.15", "sglang-0.5"]),
    running=st.integers(1, 2000),
    cached=st.integers(1, 200_000),
)
def test_no_step_reads_its_cache_in_less_than_its_bound(model, engine, running, cached):
    """An index chooses at most so many tokens: those of a long context read less each than those of a short one."""
    steps = decode_steps(model, engine)
    bound = _cache_seconds(steps) * running * cached
    assert 0 < bound <= steps.decode_attention(running, cached).seconds * (1 + 1e-9)
