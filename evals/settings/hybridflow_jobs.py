"""Plans of HybridFlow's evaluation (Sheng et al. 2025, EuroSys, section 8.1) on A100-80GB nodes."""

from functools import lru_cache
from pathlib import Path

from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Role
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.planner.plans.assembly import assemble
from rlplan.profiles.catalog import load_model, resolve_job
from rlplan.profiles.facts import Facts, load_facts
from rlplan.workload import Lengths, Lognormal, Workload

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
# Safe-RLHF has a cost model beside PPO's (Sheng et al. 2025, section 8.1); ReMax has no critic.
ROLES_BY_ALGORITHM: dict[str, tuple[Role, ...]] = {
    "ppo": ROLES,
    "remax": ("actor", "reference", "reward"),
    "safe-rlhf": (*ROLES, "cost"),
}
CRITIC_SIDE: frozenset[Role] = frozenset({"critic", "reward", "cost"})
POOL = "all"


@lru_cache(maxsize=256)
def job_of(model: str, gpus: int, algorithm: str = "ppo", prompt_tokens: Lengths = TOKENS) -> Job:
    """Return HybridFlow's job: 1,024 prompts, responses forced to 1,024 tokens, 8 updates.

    Args:
        model: A size that all models have (`34B`), or those of actor and reference and of critic and
            reward (`13B/70B`).
        prompt_tokens: Lengths of the prompts as engines that drop padding see them.

    Raises:
        KeyError: A size is not among `MODELS`.
    """
    sizes = model.split("/")
    architectures = [load_model(MODELS[size]) for size in (sizes[0], sizes[-1])]
    job = Job(
        algorithm=algorithm,
        models=FrozenDict(
            {role: architectures[role in CRITIC_SIDE] for role in ROLES_BY_ALGORITHM[algorithm]}
        ),
        workload=Workload(
            prompts=PROMPTS, prompt_tokens=prompt_tokens, response_tokens=TOKENS, updates=UPDATES
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
    pool = ResourcePool(name=POOL, device=DEVICE, gpus=gpus, roles=ROLES)
    made_by = "HybridFlow's evaluation"
    return assemble(job, (pool,), tasks, made_by=made_by, transition="hybridflow")
