"""Jobs and random valid plans whose forecasts are kept: every change of a formula shows here."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from rlplan.errors import RlplanError
from rlplan.evals.annealing import NeighbourDraws
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Rewards
from rlplan.profiles.catalog import ENGINES, load_job, load_model
from rlplan.profiles.facts import Facts, load_facts
from rlplan.rules import check_plan
from rlplan.workload import Lognormal, Uniform, Workload

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PPO = ("actor", "critic", "reference", "reward")
TAIL = Lognormal(mean=900, std=700, max=4096)
SHORT = Uniform(low=64, high=512)


def _job(algorithm, models, cluster, *, rule=False, engines=None, precision="bf16", **work):
    fields = {"prompts": 256, "prompt_tokens": 512, "response_tokens": 512, "updates": 4}
    return Job(
        name="-".join(dict.fromkeys((algorithm, *models.values()))),
        algorithm=algorithm,
        models=FrozenDict({role: load_model(name) for role, name in models.items()}),
        workload=Workload(**(fields | work)),
        cluster=cluster,
        engines=engines or Engines(train="megatron-core", generate="vllm"),
        precision=precision,
        rewards=Rewards(function="digits", function_seconds_per_sample=0.002) if rule else None,
    )


def _nodes(gpu, nodes, **more):
    return (NodeGroup(gpu=gpu, gpus_per_node=8, nodes=nodes, inter_node_gbps=200.0, **more),)


def jobs():
    """Return unlike jobs: every algorithm, dense models and experts, equal and mixed clusters."""
    a100, h100 = "a100-80gb-sxm", "h100-80gb-sxm"
    pair = ("actor", "reference")
    examples = [
        load_job(path) for path in sorted(EXAMPLES.glob("*.yaml")) if ".plan" not in path.name
    ]
    return [
        *examples,
        _job("ppo", dict.fromkeys(PPO, "llama-2-13b"), _nodes(a100, 4), response_tokens=TAIL),
        _job(
            "grpo", dict.fromkeys(pair, "qwen3-30b-a3b"), _nodes(h100, 4, cpu_cores=64),
            rule=True, samples_per_prompt=8, prompt_tokens=SHORT, response_tokens=TAIL,
        ),
        _job(
            "rloo", dict.fromkeys((*pair, "reward"), "mixtral-8x7b"), _nodes(h100, 2),
            samples_per_prompt=4,
        ),
        _job(
            "remax", dict.fromkeys((*pair, "reward"), "llama-3.1-8b"), _nodes(h100, 2),
            engines=Engines(train="fsdp2", generate="vllm"), response_tokens=TAIL,
        ),
        _job(
            "reinforce-plus-plus", dict.fromkeys((*pair, "reward"), "qwen2.5-7b"),
            _nodes("h20", 2), engines=Engines(train="deepspeed-zero3", generate="vllm-0.3"),
        ),
        _job(
            "ppo",
            {"actor": "llama-2-70b", "critic": "llama-2-7b"}
            | {"reference": "llama-2-70b", "reward": "llama-2-7b"},
            _nodes(a100, 8),
            prompts=1024,
        ),
        _job(
            "grpo", dict.fromkeys((*pair, "reward"), "qwen2.5-1.5b"), _nodes("l40s", 1),
            engines=Engines(train="torch-3d", generate="torch-static"),
            samples_per_prompt=4, prompt_tokens=SHORT, response_tokens=TAIL,
        ),
        _job(
            "grpo", dict.fromkeys((*pair, "reward"), "qwen2.5-0.5b"), _nodes("a10g", 1),
            engines=Engines(train="torch-3d-sp", generate="megatron-no-cache"),
            samples_per_prompt=2, response_tokens=64,
        ),
        _job(
            "ppo", dict.fromkeys(PPO, "llama-3.1-8b"), _nodes(a100, 1),
            engines=Engines(train="real", generate="real-static"), precision="fp16",
        ),
    ]  # fmt: skip


def drawn_plans(count, seed=0):
    """Yield (job, plan) pairs: walks of random changes over the jobs, valid plans only, all unlike."""
    generator = Random(seed)
    every = jobs()
    facts: dict[int, Facts] = {index: load_facts(job) for index, job in enumerate(every)}
    walks = [
        NeighbourDraws(job, facts[index], generator, ("sync", "one-step-off"))
        for index, job in enumerate(every)
    ]
    states: list[Any] = [None] * len(every)
    found = []
    number = 0
    while len(found) < count:
        at = number % len(every)
        number += 1
        for _ in range(4):
            walk = walks[at]
            state = states[at]
            after = walk.first() if state is None else walk.neighbour(state)
            states[at] = after or state
        if states[at] is None:
            continue
        plan = walks[at].plan(states[at], "golden")
        try:
            check_plan(plan, ENGINES)
        except RlplanError:
            continue
        if any(plan == other for _, other in found):
            continue
        found.append((at, replace(plan, job=every[at])))
    return every, facts, found
