"""Model FLOPs utilisation (MFU): the share of its GPUs' peak rate that a task's useful work takes."""

from collections.abc import Mapping

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.job import Job
from rlplan.models import Head, ModelArchitecture, Shard, layer_kinds
from rlplan.plan import Plan
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Forecast
from rlplan.simulator.model import flops_of, head_operators, layer_operators
from rlplan.simulator.workload import micro_batch_of, statistics_of

# A backward pass has two matrix products for each of the forward pass, one where weights are frozen (Chowdhery
# et al. 2022, PaLM, arXiv:2204.02311, appendix B, which defines MFU: what is computed again does not count).
PASSES_OF_TRAINING, PASSES_OF_ADAPTERS = 3, 2


def mfu_fractions(plan: Plan, forecast: Forecast, facts: Facts) -> Mapping[str, float]:
    """Return the MFU of every task that trains or infers, by its name.

    The useful work is that of unpadded sequences, attention over the causal half and the output head
    included. The peak is the dense one of the device in the job's number format.
    """
    job, seconds = plan.job, {cost.name: cost.seconds for cost in forecast.costs}
    assert job.precision is not None, "job was not resolved: no precision"
    found = {}
    for task in tasks_of(load_algorithm(job.algorithm), job):
        if not task.has_model or task.generates or not seconds.get(task.name):
            continue
        if job.judge is not None and task.role == "reward":
            continue
        pool = plan.pool_of(task.name)
        peaks = facts.device(pool.device).sheet.peak_flops_per_second
        peak = peaks.get(job.precision)
        if peak is None:
            continue
        trained = PASSES_OF_TRAINING if job.adapter(task.role) is None else PASSES_OF_ADAPTERS
        passes = trained * job.workload.epochs if task.trains else 1
        flops = forward_flops(job.architecture(task.role), job, task.head) * passes * task.batches
        found[task.name] = flops / (seconds[task.name] * pool.gpus * peak)
    return found


def forward_flops(model: ModelArchitecture, job: Job, head: Head) -> float:
    """Return the FLOPs of a forward pass of an uncut model over the sequences of an iteration."""
    work, statistics = job.workload, statistics_of(job.workload)
    batch = micro_batch_of(statistics, 1, "none")
    layers = layer_kinds(model).total(lambda kind: flops_of(layer_operators(kind, Shard(), batch)))
    return work.sequences * (layers + flops_of(head_operators(model, Shard(), batch, head)))
