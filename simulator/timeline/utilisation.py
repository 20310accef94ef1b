"""How much of the time and of the GPUs' peak rate goes into useful work: goodput, and model FLOPs utilisation (MFU).

Goodput is what of the time goes into iterations that last, where nodes fail and checkpoints are written. Failures come
at random with a mean time M between them, also while a checkpoint is written or training starts again. For work in
pieces of t seconds, each followed by a checkpoint of c, and restarts of r, the expected time is (Daly 2006, Future
Generation Computer Systems 22(3), eq. 20)

    M exp(r / M) (exp((t + c) / M) - 1)    for every t.

It is least where 1 - exp(-(t + c) / M) = t / M, which for c << M is t = sqrt(2 c M) (Young 1974,
Communications of the ACM 17(9)).
"""

import math
from collections.abc import Mapping

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.job import Failures, Job
from rlplan.models import Head, ModelArchitecture, Shard, layer_kinds
from rlplan.plan import Plan
from rlplan.profiles.analytic.normal import zero_between
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Forecast, GoodputForecast
from rlplan.simulator.model import flops_of, head_operators, layer_operators
from rlplan.simulator.workload import learnt_work, micro_batch_of, statistics_of

# A larger exponent is beyond what a float holds: nothing is ever done.
LARGEST_EXPONENT = 700.0
# A training with less of the time than any table shows (`rlplan.reports.tables.wording`) does not get on: no number of
# centuries a step says more.
LEAST_FRACTION = 1e-3
# Below this share of M, a checkpoint costs nothing that tells one interval from another.
LEAST_CHECKPOINT_FRACTION = 1e-12


def nodes_of(plan: Plan) -> int:
    """Return the nodes that have a GPU of any of the plan's pools."""
    count = 0
    for device in {pool.device for pool in plan.pools if not pool.is_host}:
        left = sum(pool.gpus for pool in plan.pools if pool.device == device)
        for group in (group for group in plan.job.cluster if group.gpu == device):
            here = min(left, group.gpus)
            count += -(-here // group.gpus_per_node)
            left -= here
    return count


def goodput_forecast(plan: Plan, iteration_seconds: float) -> GoodputForecast | None:
    """Return what failures leave of a plan's iterations; None where the job does not speak of them."""
    failures = plan.job.failures
    if failures is None:
        return None
    return left_between(failures, failures.node_mtbf_seconds / nodes_of(plan), iteration_seconds)


def left_between(
    failures: Failures, between_seconds: float, iteration_seconds: float
) -> GoodputForecast:
    """Return what failures leave of iterations, with so many seconds between two of them on average."""
    every = failures.checkpoint_every
    if every is None:
        every = best_interval(failures, between_seconds, iteration_seconds)
    fraction = goodput(failures, between_seconds, every * iteration_seconds)
    if fraction < LEAST_FRACTION:
        fraction = 0.0
    return GoodputForecast(
        fraction=fraction,
        failure_every_seconds=between_seconds,
        checkpoint_every=every,
        iteration_seconds=iteration_seconds / fraction if fraction else None,
    )


def goodput(failures: Failures, between_seconds: float, work_seconds: float) -> float:
    """Return the share of the time that goes into work which lasts.

    Args:
        between_seconds: Mean time between failures of all nodes of the job.
        work_seconds: Between two checkpoints.
    """
    piece = (work_seconds + failures.checkpoint_seconds) / between_seconds
    restart = failures.restart_seconds / between_seconds
    if piece + restart > LARGEST_EXPONENT:
        return 0.0
    return work_seconds / (between_seconds * math.exp(restart) * math.expm1(piece))


def best_interval(failures: Failures, between_seconds: float, iteration_seconds: float) -> int:
    """Return the iterations between two checkpoints with the largest goodput."""
    cost = failures.checkpoint_seconds / between_seconds
    if cost < LEAST_CHECKPOINT_FRACTION:
        return 1
    share = zero_between(lambda each: each + math.exp(-(each + cost)) - 1, 0.0, 1.0)
    low = max(1, math.floor(share * between_seconds / iteration_seconds))
    return max(
        (low, low + 1), key=lambda n: goodput(failures, between_seconds, n * iteration_seconds)
    )


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
    found, served = {}, job.served_roles
    for task in tasks_of(load_algorithm(job.algorithm), job):
        if not task.has_model or task.generates or not seconds.get(task.name):
            continue
        if task.role in served:
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
    work = learnt_work(job.workload)
    statistics = statistics_of(work)
    batch = micro_batch_of(statistics, 1, "none")
    layers = layer_kinds(model).total(lambda kind: flops_of(layer_operators(kind, Shard(), batch)))
    return work.sequences * (layers + flops_of(head_operators(model, Shard(), batch, head)))
