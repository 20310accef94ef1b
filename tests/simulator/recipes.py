"""NeMo-RL's recipes of RL training as jobs and plans.

`nemo_rl_recipes.csv` holds what NVIDIA-NeMo/RL (Apache-2.0) has under examples/configs/recipes/llm/performance:
its sizes, batches and formats. Lengths are not in them: prompts of 256 tokens are taken, and responses that
fill the rest of the longest sequence now and then.
"""

import csv
from pathlib import Path
from typing import NamedTuple

from rlplan.files.frozen import FrozenDict
from rlplan.job import Hyperparameters, Job, NodeGroup, Rewards, Role
from rlplan.models import Precision
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.profiles.jobs.resolve import resolve_job
from rlplan.workload import Lognormal, Workload

TABLE = Path(__file__).parent / "nemo_rl_recipes.csv"
PROMPT_TOKENS = 256
# The GPUs of nodes of so many, as the recipes' names tell them apart.
GPUS = {8: "h100-80gb-sxm", 4: "gb200"}
HOST = ResourcePool(name="host", device="host", gpus=16, roles=("rule",))


class Recipe(NamedTuple):
    """Hold one row: sizes as NeMo-RL names them, shortened."""

    recipe: str
    nodes: int
    gpus_per_node: int
    model: str
    prompts: int
    samples: int
    global_batch: int
    micro_batch: int
    logprob_batch: int
    total_tokens: int
    tp: int
    cp: int
    ep: int
    pp: int
    recomputes: bool
    fp8: bool
    rollout_tp: int
    rollout_precision: str
    rollout_memory: float
    rollout_nodes: int
    kl: float


def recipes():
    """Return all rows."""
    with TABLE.open(encoding="utf-8") as file:
        return [Recipe(*map(read_value, row.values())) for row in csv.DictReader(file)]


def read_value(text):
    """Return a cell as a number or flag where it is one, and 0 where it is empty."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text or 0)
        except ValueError:
            continue
    return text


def job_of(row):
    """Return the resolved job of a recipe."""
    response_tokens = row.total_tokens - PROMPT_TOKENS
    narrow: Precision = "fp8" if row.gpus_per_node == 8 else "mxfp8"
    job = Job(
        name=row.recipe,
        algorithm="grpo",
        models=FrozenDict(dict.fromkeys(("actor", "reference"), row.model)),
        workload=Workload(
            prompts=row.prompts,
            samples_per_prompt=row.samples,
            prompt_tokens=PROMPT_TOKENS,
            response_tokens=Lognormal(
                mean=response_tokens / 4, std=response_tokens / 4, max=response_tokens
            ),
            updates=max(1, row.prompts * row.samples // row.global_batch),
        ),
        cluster=(
            NodeGroup(
                gpu=GPUS[row.gpus_per_node], gpus_per_node=row.gpus_per_node, nodes=row.nodes
            ),
        ),
        rewards=Rewards(function="exact_match", function_seconds_per_sample=0.002),
        hyperparameters=Hyperparameters(kl_coefficient=row.kl),
        precision="fp8" if row.fp8 else "bf16",
        rollout_precision=narrow if row.rollout_precision == "fp8" else "bf16",
    )
    return resolve_job(job, TABLE.parent)


def plan_of(row):
    """Return the plan of a recipe: Megatron-Core trains, vLLM generates, on nodes of its own where it says so.

    The reference's weights lie in host memory, and so do optimizer states while the same GPUs generate.
    """
    job = job_of(row)
    device, own = GPUS[row.gpus_per_node], row.rollout_nodes * row.gpus_per_node
    gpus, apart = job.gpus - own, own > 0
    cut = {
        "pool": "train",
        "engine": "megatron-core",
        "tp": row.tp,
        "cp": row.cp,
        "pp": row.pp,
        "dp": gpus // (row.tp * row.cp * row.pp),
        "ep": row.ep,
        # NeMo-RL's default of expert_tensor_parallel_size.
        "expert_tp": 1 if row.ep > 1 else None,
    }
    roles: tuple[Role, ...] = ("actor", "reference") if row.kl else ("actor",)
    pools = [ResourcePool(name="train", device=device, gpus=gpus, roles=roles)]
    if apart:
        pools.append(ResourcePool(name="rollout", device=device, gpus=own, roles=("actor",)))
    tasks = {
        "actor.generate": TaskPlan(
            pool=pools[-1].name,
            engine="vllm",
            tp=row.rollout_tp,
            dp=pools[-1].gpus // row.rollout_tp,
            max_running=row.prompts * row.samples,
            memory_fraction=row.rollout_memory,
        ),
        "rule.compute_reward": TaskPlan(pool="host", dp=HOST.gpus, engine="python"),
        "actor.update": TaskPlan(
            **cut,
            micro_batch=row.micro_batch,
            recompute="full" if row.recomputes else "none",
            zero=1,
            offload=not apart,
        ),
    }
    if row.kl:
        tasks["reference.compute_log_prob"] = TaskPlan(
            **cut, micro_batch=row.logprob_batch, offload=True
        )
    order = ("actor.generate", "reference.compute_log_prob", "actor.update")
    ordered = {
        pool.name: tuple(name for name in order if name in tasks and tasks[name].pool == pool.name)
        for pool in pools
    }
    same = (row.tp, row.pp) == (row.rollout_tp, 1)
    return Plan(
        job=job,
        pools=(*pools, HOST),
        tasks=FrozenDict(tasks),
        order=FrozenDict(ordered | {"host": ("rule.compute_reward",)}),
        mode="one-step-off" if apart else "sync",
        staleness=int(apart),
        transition="two-copies" if apart else ("none" if same else "all-gather"),
    )
