"""Small jobs and plans of the executor's tests."""

from typing import Any

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.files.frozen import FrozenDict
from rlplan.job import Hyperparameters, Job, NodeGroup, Rewards
from rlplan.models import ModelArchitecture
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.workload import Workload
from tests.cases import covering

TINY = ModelArchitecture(
    name="tiny-test",
    family="llama",
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    ffn_size=64,
    vocab_size=260,
    max_positions=64,
)


def make_job(algorithm="ppo", *, model=TINY, **work):
    """Return a job of tiny models that the algorithm needs, with a rule (PPO: and a reward model)."""
    chosen = load_algorithm(algorithm)
    roles = (*chosen.required_roles, *(("reward",) if algorithm == "ppo" else ()))
    rewards = Rewards(function="digits", cost_function="copy" if chosen.constrained else None)
    workload = {
        "prompts": 8,
        "samples_per_prompt": 1,
        "prompt_tokens": 6,
        "response_tokens": 5,
        "updates": 1,
    }
    return Job(
        name="test",
        algorithm=algorithm,
        models=FrozenDict(dict.fromkeys(roles, model)),
        weights="random",
        workload=Workload(**(workload | work)),
        cluster=(NodeGroup(gpu="cpu", gpus_per_node=8, nodes=2, inter_node_gbps=200.0),),
        rewards=rewards,
        hyperparameters=Hyperparameters(learning_rate=1e-3, critic_learning_rate=1e-3),
        seed=3,
    )


def make_plan(
    job,
    pools,
    *,
    tp=1,
    pp=1,
    tp_gen=None,
    pp_gen=None,
    cp=1,
    ep=1,
    transition="hybridflow",
    micro_batch=4,
    max_running=256,
    **train,
):
    """Return a plan; `pools` maps a pool's name to (devices, roles). A rule gets a host pool.

    What else is given (`chunks`, `zero`, `recompute`, ...) is for tasks that train.
    """
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    pool_of = {}
    for name, (_, roles) in pools.items():
        for role in roles:
            pool_of.setdefault(role, name)
    found = [
        ResourcePool(name=name, device="cpu", gpus=gpus, roles=tuple(roles))
        for name, (gpus, roles) in pools.items()
    ]
    found.append(ResourcePool(name="host", device="host", gpus=1, roles=("rule",)))
    pool_of["rule"] = "host"
    layouts = {}
    trained = {task.role for task in tasks if task.kind == "train"}
    # What infers with weights that are trained has them as they lie there.
    lies_sharded: dict[str, Any] = {"zero": 3} if train.get("zero") == 3 else {}
    for task in tasks:
        pool_name = pool_of[task.role]
        if task.kind == "generate" and "generator" in pools:
            pool_name = "generator"
        gpus = next(pool.gpus for pool in found if pool.name == pool_name)
        size, stages = (1, 1) if task.kind == "rule" else (min(tp, gpus), min(pp, gpus))
        if task.kind == "generate":
            size, stages = tp_gen or size, pp_gen or stages
        shares = {"cp": cp, "ep": ep} if task.kind in ("train", "infer") else {"cp": 1}
        used = task.stage_kind.layout_fields
        own: dict[str, Any] = {"micro_batch": micro_batch, "max_running": max_running}
        layouts[task.name] = TaskPlan(
            pool=pool_name,
            tp=size,
            pp=stages,
            dp=gpus // (size * stages * shares["cp"]),
            **shares,
            **{name: value for name, value in own.items() if name in used},
            **(train if task.kind == "train" else {}),
            **(lies_sharded if task.kind == "infer" and task.role in trained else {}),
        )
    order = {
        pool.name: tuple(t.name for t in tasks if layouts[t.name].pool == pool.name)
        for pool in found
    }
    return Plan(
        job=job,
        pools=tuple(found),
        tasks=FrozenDict(layouts),
        order=FrozenDict(order),
        transition=transition,
    )


ALL_ROLES = ("actor", "critic", "reference", "reward")

# Ranks of a case that runs by default; tensor parallelism is slow on CPUs.
MOST_RANKS, TENSOR_PARALLEL_COST = 4, 2


def chosen_by_default(cases):
    """Return names of cases that have, together, every option that any of few ranks has.

    Args:
        cases: By name: ranks, sizes and settings, and names of further options.
    """
    options, costs = {}, {}
    for name, (ranks, sizes, more) in cases.items():
        if ranks > MOST_RANKS:
            continue
        copies = ranks // (sizes.get("tp", 1) * sizes.get("pp", 1) * sizes.get("cp", 1))
        own = {f"{key} {value}" for key, value in sizes.items() if key != "micro_batch"}
        options[name] = own | ({"dp"} if copies > 1 else set()) | set(more)
        is_cut = max(sizes.get("tp", 1), sizes.get("tp_gen", 1)) > 1
        costs[name] = ranks * (TENSOR_PARALLEL_COST if is_cut else 1)
    return covering(options, costs)
