"""What an iteration costs in money and energy, and how much of it is useful work: goodput, and MFU.

Money: every GPU that a pool holds is paid for the whole iteration, busy or not, at the price that
its node group or else its device sheet gives; the host cores of its node are part of that price.

Energy: that of the boards and of the workers of reward functions, not of the rest of the nodes. A
board draws its idle power all the time, and more while its pool works, by what limits the work:

- computing (inference, training): 76 % of the rated power, what a node of eight H100 drew on average
  under computationally intensive training (Newkirk et al. 2025, Empirically-Calibrated H100 Node
  Power Models, arXiv:2506.14551, abstract; its figure is of the whole node and taken for the board's);
- moving bytes (generation, whose decode steps read weights and KV cache, and transitions): 50 % of the
  rated power. Capping an H100 at half its power leaves the latency of token generation as it is (Patel
  et al. 2024, Splitwise, ISCA, section III, power utilization); decode drew 137 to 300 W of an H200's
  700 W (Ma et al. 2026, The Illusion of Power Capping in LLM Decode, arXiv:2605.11999, abstract). That
  transitions draw as much is an assumption.

A CPU core draws its rated power while it works.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.job import Failures, Job, NodeGroup
from rlplan.models import Head, ModelArchitecture, Shard, layer_kinds
from rlplan.plan import HOST_DEVICE, Plan, first_gpus, pieces_at
from rlplan.profiles.analytic.normal import zero_between
from rlplan.profiles.catalog import load_device
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Forecast, GoodputForecast
from rlplan.sheets import DeviceSheet
from rlplan.simulator.model import flops_of, head_operators, layer_operators
from rlplan.simulator.workload import learnt_work, micro_batch_of, statistics_of

SECONDS_PER_HOUR = 3600
COMPUTING_POWER_FRACTION = 0.76
MOVING_POWER_FRACTION = 0.5
HOST_SHEET = "cpu"

# A larger exponent is beyond what a float holds: nothing is ever done.
LARGEST_EXPONENT = 700.0
# A training with less of the time than any table shows (`rlplan.reports.tables.wording`) does not get on: no number of
# centuries a step says more.
LEAST_FRACTION = 1e-3
# Below this share of the time between two failures, a checkpoint costs nothing that tells one interval from another.
LEAST_CHECKPOINT_FRACTION = 1e-12

# A backward pass has two matrix products for each of the forward pass, one where weights are frozen (Chowdhery
# et al. 2022, PaLM, arXiv:2204.02311, appendix B, which defines MFU: what is computed again does not count).
PASSES_OF_TRAINING, PASSES_OF_ADAPTERS = 3, 2


@dataclass(frozen=True, slots=True)
class PoolRates:
    """Hold what a pool costs by the second, all its GPUs together.

    Attributes:
        usd_per_second: Price, busy or not.
        idle_watts: Power, busy or not.
        computing_watts: Power on top while it infers, trains or runs reward functions.
        moving_watts: Power on top while it generates or changes layouts.
    """

    usd_per_second: float
    idle_watts: float
    computing_watts: float
    moving_watts: float


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """Hold a pool's rates and the seconds of an iteration in which it works, or bounds on them."""

    rates: PoolRates
    computing_seconds: float = 0.0
    moving_seconds: float = 0.0


def pool_rates(
    job: Job, facts: Facts, device: str, gpus: int, first: int | None = None
) -> PoolRates:
    """Return what `gpus` GPUs of a device cost by the second.

    Args:
        device: A device sheet's name, or `host` for workers of reward functions.
        first: Which GPU of the device is the pool's first, counted over the cluster's node groups;
            None takes the cheapest, so that no place costs less.
    """
    sheet = facts.device(device).sheet
    if device == HOST_DEVICE and sheet.kind != "cpu":
        sheet = load_device(HOST_SHEET)
    idle = min(sheet.idle_watts, sheet.power_watts)
    fractions = (COMPUTING_POWER_FRACTION, MOVING_POWER_FRACTION)
    if sheet.kind == "cpu":
        fractions = (1.0, 1.0)
    computing, moving = (max(0.0, each * sheet.power_watts - idle) for each in fractions)
    price = 0.0 if device == HOST_DEVICE else _usd_per_hour(job, sheet, device, gpus, first)
    return PoolRates(
        usd_per_second=price / SECONDS_PER_HOUR,
        idle_watts=gpus * idle,
        computing_watts=gpus * computing,
        moving_watts=gpus * moving,
    )


def rates_of(plan: Plan, facts: Facts) -> dict[str, PoolRates]:
    """Return the rates of every pool of a plan, by the pool's name."""
    return {
        pool.name: pool_rates(plan.job, facts, pool.device, pool.gpus, first)
        for pool, first in first_gpus(plan)
    }


def iteration_usd(rates: Iterable[PoolRates], iteration_seconds: float) -> float:
    """Return the price of an iteration in USD."""
    return sum(each.usd_per_second for each in rates) * iteration_seconds


def iteration_joules(loads: Iterable[PoolLoad], iteration_seconds: float) -> float:
    """Return the energy of an iteration; it grows with every one of the seconds."""
    joules = 0.0
    for load in loads:
        joules += load.rates.idle_watts * iteration_seconds
        joules += load.rates.computing_watts * load.computing_seconds
        joules += load.rates.moving_watts * load.moving_seconds
    return joules


def _usd_per_hour(job: Job, sheet: DeviceSheet, device: str, gpus: int, first: int | None) -> float:
    def price(group: NodeGroup) -> float:
        return sheet.usd_per_hour if group.usd_per_gpu_hour is None else group.usd_per_gpu_hour

    if first is not None:
        pieces = pieces_at(job, device, first, gpus)
        return sum(size * price(group) for group, size in pieces)
    groups = sorted((price(group), group.gpus) for group in job.cluster if group.gpu == device)
    total, left = 0.0, gpus
    for each, held in groups:
        total += each * min(left, held)
        left -= min(left, held)
    return total


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
    """Return the share of the time that goes into work which lasts, where nodes fail and checkpoints are written.

    Failures come at random with a mean time M between them, also while a checkpoint is written or training starts
    again. For work in pieces of t seconds, each followed by a checkpoint of c, and restarts of r, the expected time is
    (Daly 2006, Future Generation Computer Systems 22(3), eq. 20)

        M exp(r / M) (exp((t + c) / M) - 1)    for every t.

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
    """Return the iterations between two checkpoints with the largest goodput.

    It is largest where 1 - exp(-(t + c) / M) = t / M, which for c << M is t = sqrt(2 c M) (Young 1974, Communications
    of the ACM 17(9)).
    """
    cost = failures.checkpoint_seconds / between_seconds
    if cost < LEAST_CHECKPOINT_FRACTION:
        return 1
    share = zero_between(lambda each: each + math.exp(-(each + cost)) - 1, 0.0, 1.0)
    low = max(1, math.floor(share * between_seconds / iteration_seconds))
    return max(
        (low, low + 1), key=lambda n: goodput(failures, between_seconds, n * iteration_seconds)
    )


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
