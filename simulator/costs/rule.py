"""Rule tasks: a reward function on CPU workers."""

from profiles.facts import DeviceFacts, Facts
from rlplan.dataflow import Task
from rlplan.errors import MissingFactError
from rlplan.estimate import Estimate, Source
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE
from simulator.costs.taskcost import TaskCost, cost_of
from simulator.costs.traffic import data_bytes
from simulator.site import Site


def rule_cost(task: Task, site: Site, job: Job, facts: Facts) -> TaskCost:
    """Return what a reward function costs: seconds per sample, samples spread over the workers.

    Raises:
        MissingFactError: The job says no time per sample and the profile has none.
    """
    assert job.rewards is not None, "a rule task comes with rewards"
    name = job.cluster[0].gpu if site.device == HOST_DEVICE else site.device
    device = facts.device(name)
    each = _per_sample(job, device)
    samples = -(-job.workload.sequences // site.gpus)
    return cost_of(
        {
            "reward function": each * samples,
            "call overhead": device.call(data_bytes(task.inputs, job.workload)),
        }
    )


def _per_sample(job: Job, device: DeviceFacts) -> Estimate:
    """Return seconds of one call of the reward function: as measured, or as the job says."""
    assert job.rewards is not None
    stated = job.rewards.function_seconds_per_sample
    try:
        return device.call(0, kind=f"rule:{job.rewards.function}")
    except MissingFactError:
        if stated is None:
            raise MissingFactError(
                f"job: rewards.function {job.rewards.function!r} has no known time: give "
                f"`function_seconds_per_sample`, or profile this machine with the job"
            ) from None
        return Estimate(stated, 0.0, Source.DATASHEET)
