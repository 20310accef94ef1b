"""Rule tasks: a reward function on CPU workers."""

from profiles.facts import Facts
from rlplan.dataflow import Task
from rlplan.estimate import ZERO
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE
from simulator.costs.taskcost import TaskCost, cost_of
from simulator.costs.traffic import data_bytes
from simulator.site import Site
from simulator.workload.sequences import local_sequences


def rule_cost(task: Task, site: Site, job: Job, facts: Facts) -> TaskCost:
    """Return what the job's functions cost: seconds per sample, samples spread over the workers.

    Raises:
        MissingFactError: The job says no time per sample and the profile has none.
    """
    assert job.rewards is not None, "a rule task comes with rewards"
    name = job.cluster[0].gpu if site.device == HOST_DEVICE else site.device
    device = facts.device(name)
    functions = (job.rewards.function, job.rewards.cost_function)
    each = sum((device.call(kind=f"rule:{name}") for name in functions if name), ZERO)
    samples = local_sequences(job, site.gpus)
    num_bytes = data_bytes(task.inputs, job.workload) // site.gpus
    return cost_of({"reward function": each * samples, "call overhead": device.call(num_bytes)})
