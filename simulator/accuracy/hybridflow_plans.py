"""Plans of HybridFlow's evaluation (Sheng et al. 2025, EuroSys, section 8.1) on A100-80GB nodes."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from profiles.catalog import load_model, resolve_job
from profiles.facts import Facts, load_facts
from rlplan.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Role, Workload
from rlplan.lengths import Lognormal
from rlplan.plan import Plan, ResourcePool, TaskPlan

DEVICE = "a100-80gb-sxm"
NODE_GPUS = 8
NETWORK_GBPS = 200.0
MODELS = {
    "7B": "llama-2-7b",
    "13B": "llama-2-13b",
    "34B": "codellama-34b",
    "70B": "llama-2-70b",
}
TOKENS = 1024  # of a prompt, and of a response
# Prompts of Dahoas/full-hh-rlhf without padding: 163 tokens on average (see the reader of figure 15),
# the longest cut at 1,024. Their spread is taken to be about their mean, as chats' lengths have it.
TRUE_PROMPTS = Lognormal(mean=163, std=150, max=TOKENS)
PROMPTS = 1024
UPDATES = 8
TRAIN, GENERATE = "megatron-core", "vllm-0.3"
ROLES: tuple[Role, ...] = ("actor", "critic", "reference", "reward")
POOL = "all"


@lru_cache(maxsize=64)
def job_of(model: str, gpus: int) -> Job:
    """Return HybridFlow's PPO job: all models of one size, 1,024 prompts, lengths forced."""
    architecture = load_model(MODELS[model])
    job = Job(
        algorithm="ppo",
        models=FrozenDict(dict.fromkeys(ROLES, architecture)),
        workload=Workload(
            prompts=PROMPTS, prompt_tokens=TOKENS, response_tokens=TOKENS, updates=UPDATES
        ),
        cluster=(
            NodeGroup(
                gpu=DEVICE,
                gpus_per_node=min(gpus, NODE_GPUS),
                nodes=max(1, gpus // NODE_GPUS),
                inter_node_gbps=NETWORK_GBPS,
            ),
        ),
        engines=Engines(train=TRAIN, generate=GENERATE),
        precision="bf16",
    )
    return resolve_job(job, Path())


@lru_cache(maxsize=64)
def facts_of(model: str, gpus: int) -> Facts:
    """Return the facts of the job's cluster."""
    return load_facts(job_of(model, gpus))


def colocated(
    model: str, gpus: int, train: tuple[int, int], generate: tuple[int, int], micro_batch: int
) -> Plan:
    """Return the plan with all models on all GPUs.

    Args:
        train: TP and PP of training and inference; DP takes the rest.
        generate: TP and PP of generation.
    """
    job = job_of(model, gpus)

    def task(sizes: tuple[int, int], engine: str, **more: object) -> TaskPlan:
        tp, pp = sizes
        return TaskPlan(
            pool=POOL, tp=tp, pp=pp, dp=gpus // (tp * pp), engine=engine, **more  # type: ignore[arg-type]
        )  # fmt: skip

    infer = task(train, TRAIN, micro_batch=micro_batch)
    update = task(train, TRAIN, micro_batch=micro_batch, recompute="full", zero=1)
    tasks = {
        "actor.generate": task(generate, GENERATE),
        "critic.compute_values": infer,
        "reference.compute_log_prob": infer,
        "reward.compute_reward": infer,
        "actor.update": update,
        "critic.update": update,
    }
    return Plan(
        job=job,
        pools=(ResourcePool(name=POOL, device=DEVICE, gpus=gpus, roles=ROLES),),
        tasks=FrozenDict(tasks),
        order=FrozenDict({POOL: tuple(tasks)}),
        transition="hybridflow",
        made_by="HybridFlow's evaluation",
    )


def candidates(model: str, gpus: int) -> Iterator[Plan]:
    """Yield the colocated plans among which the fastest that fits is taken for HybridFlow's.

    TP up to a node, PP up to 8, generation TP up to the training's, micro-batches of 2 and 8.
    """
    powers = (1, 2, 4, 8)
    for tp in powers:
        for pp in powers:
            block = tp * pp
            if block > gpus or gpus % block or gpus // block > PROMPTS // UPDATES:
                continue
            for tp_gen in powers:
                if tp_gen <= tp:
                    for micro_batch in (2, 8):
                        yield colocated(model, gpus, (tp, pp), (tp_gen, 1), micro_batch)
