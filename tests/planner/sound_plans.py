"""Sound plans on a cluster of A100s, with layouts written out, for tests of what is refused or priced."""

from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan, ResourcePool, TaskPlan

A100 = "a100-80gb-sxm"
TASKS = (
    "actor.generate",
    "critic.compute_values",
    "reference.compute_log_prob",
    "reward.compute_reward",
    "rule.compute_reward",
    "actor.update",
    "critic.update",
)


def plan_on(job, pools, layouts, *, device=A100, transition="hybridflow"):
    """Return a plan of a job.

    Args:
        pools: By name, GPUs and roles.
        layouts: By task name, its pool and sizes; engines come from the job.
    """
    tasks = {}
    for name in TASKS:
        if name in layouts:
            pool, sizes = layouts[name]
            engine = job.engines.generate if name == "actor.generate" else job.engines.train
            engine = "python" if name == "rule.compute_reward" else engine
            tasks[name] = TaskPlan(pool=pool, **({"engine": engine} | sizes))
    return Plan(
        job=job,
        pools=tuple(
            ResourcePool(
                name=name, device="host" if name == "host" else device, gpus=gpus, roles=roles
            )
            for name, (gpus, roles) in pools.items()
        ),
        tasks=FrozenDict(tasks),
        order=FrozenDict(
            {
                pool: tuple(name for name, layout in tasks.items() if layout.pool == pool)
                for pool in pools
            }
        ),
        transition=transition,
    )


def split_ppo(job):
    """Return {actor, reference} and {critic, reward} on eight GPUs each."""
    train = {"tp": 4, "pp": 1, "dp": 2, "micro_batch": 1, "recompute": "full", "zero": 1}
    infer = {"tp": 4, "pp": 1, "dp": 2, "micro_batch": 4}
    return plan_on(
        job,
        {"p0": (8, ("actor", "reference")), "p1": (8, ("critic", "reward"))},
        {
            "actor.generate": (
                "p0",
                {"tp": 2, "pp": 1, "dp": 4, "max_running": 256, "memory_fraction": 0.63},
            ),
            "critic.compute_values": ("p1", infer),
            "reference.compute_log_prob": ("p0", infer),
            "reward.compute_reward": ("p1", infer),
            "actor.update": ("p0", train),
            "critic.update": ("p1", train),
        },
    )
