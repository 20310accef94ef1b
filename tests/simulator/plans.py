"""A small PPO plan on two pools, for tests that need a plan but no costs."""

from dataclasses import replace
from typing import Any

from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup
from rlplan.models import ModelArchitecture
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.workload import Workload

TINY = ModelArchitecture(
    name="tiny",
    family="llama",
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    ffn_size=128,
    vocab_size=256,
)


def split_plan(**changes):
    """Return {actor, reference} on p0 and {critic, reward} on p1, 2 GPUs each."""
    job = Job(
        algorithm="ppo",
        models=FrozenDict(dict.fromkeys(("actor", "critic", "reference", "reward"), TINY)),
        workload=Workload(prompts=8, prompt_tokens=16, response_tokens=16),
        cluster=(NodeGroup(gpu="a100-80gb-sxm", gpus_per_node=4, inter_node_gbps=200.0),),
        precision="bf16",
    )
    pools = (
        ResourcePool(name="p0", device="a100-80gb-sxm", gpus=2, roles=("actor", "reference")),
        ResourcePool(name="p1", device="a100-80gb-sxm", gpus=2, roles=("critic", "reward")),
    )
    on_p0 = ("actor.generate", "reference.compute_log_prob", "actor.update")
    on_p1 = ("critic.compute_values", "reward.compute_reward", "critic.update")
    layouts = {name: TaskPlan(pool="p0", dp=2) for name in on_p0}
    layouts |= {name: TaskPlan(pool="p1", dp=2) for name in on_p1}
    fields: dict[str, Any] = {
        "job": job,
        "pools": pools,
        "tasks": FrozenDict(layouts),
        "order": FrozenDict({"p0": on_p0, "p1": on_p1}),
    }
    return Plan(**(fields | changes))


def priced_plan(**changes):
    """Return the split plan with engines, so that it can be simulated."""
    plan = split_plan(**changes)
    engines = {"generate": "vllm"}
    tasks = {
        name: replace(layout, engine=engines.get(name.partition(".")[2], "megatron-core"))
        for name, layout in plan.tasks.items()
    }
    return replace(plan, tasks=FrozenDict(tasks))
