"""Rule tasks: a reward function on CPU workers."""

from profiles.facts import Facts
from rlplan.dataflow import Task
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE
from simulator.costs.sequences import local_sequences
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
    each = device.call(kind=f"rule:{job.rewards.function}")
    samples = local_sequences(job, site.gpus)
    num_bytes = data_bytes(task.inputs, job.workload) // site.gpus
    return cost_of({"reward function": each * samples, "call overhead": device.call(num_bytes)})
