"""The pool of CPU processes that run a reward function beside the GPUs."""

from collections.abc import Iterable

from rlplan.job import Job
from rlplan.plan import HOST_DEVICE, ResourcePool

HOST_POOL = "host"
RULE_TASK = "rule.compute_reward"


def has_rule(task_names: Iterable[str]) -> bool:
    """Tell whether a reward function runs on CPU workers."""
    return RULE_TASK in task_names


def host_pool(job: Job) -> ResourcePool:
    """Return the pool of CPU workers: as many as the first nodes say they have cores, else one."""
    workers = job.cluster[0].cpu_cores or 1
    return ResourcePool(name=HOST_POOL, device=HOST_DEVICE, gpus=workers, roles=("rule",))
