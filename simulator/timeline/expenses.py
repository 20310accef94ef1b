"""What an iteration costs in money and energy: rates of a pool, times its seconds.

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

from collections.abc import Iterable
from dataclasses import dataclass

from rlplan.job import Job, NodeGroup
from rlplan.plan import HOST_DEVICE, Plan
from rlplan.profiles.catalog import load_device
from rlplan.profiles.facts import Facts
from rlplan.sheets import DeviceSheet
from rlplan.simulator.placed import first_gpus, pieces_at

SECONDS_PER_HOUR = 3600
COMPUTING_POWER_FRACTION = 0.76
MOVING_POWER_FRACTION = 0.5
HOST_SHEET = "cpu"


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
