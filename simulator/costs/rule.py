"""Rule tasks: a reward function on CPU workers."""

import math

from rlplan.estimate import ZERO
from rlplan.plan import HOST_DEVICE
from simulator.costs.taskcost import TaskCost, cost_of
from simulator.costs.traffic import data_bytes
from simulator.placed.task import PlacedTask


def rule_cost(placed: PlacedTask) -> TaskCost:
    """Return what the job's functions cost: seconds per sample, samples spread over the workers.

    A function sees one response at a time, so that the samples of a prompt may be on several workers.
    """
    job, site = placed.job, placed.site
    assert job.rewards is not None, "a rule task comes with rewards"
    # What a call costs is known of the cluster's devices; the host's cores have no sheet.
    device = placed.facts.device(job.cluster[0].gpu if site.device == HOST_DEVICE else site.device)
    functions = (job.rewards.function, job.rewards.cost_function)
    each = sum((device.call(kind=f"rule:{name}") for name in functions if name), ZERO)
    samples = math.ceil(job.workload.sequences / site.gpus)
    num_bytes = data_bytes(placed.task.inputs, job.workload) // site.gpus
    return cost_of({"reward function": each * samples, "call overhead": device.call(num_bytes)})
