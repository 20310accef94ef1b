"""Which plans keep a job's limits, and which candidates cannot."""

from collections.abc import Iterable
from dataclasses import dataclass

from rlplan.plan import Mode, Plan
from rlplan.results.forecast import Forecast
from rlplan.specs import Specs
from simulator.timeline.expenses import SECONDS_PER_HOUR, PoolLoad, iteration_joules, iteration_usd

# What float sums may differ by when they run in another order; a limit that is met to this share is met.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Violation:
    """Hold a limit that a plan does not keep, and what the plan has instead."""

    spec: str
    limit: float
    found: float


def spec_values(plan: Plan, forecast: Forecast) -> dict[str, float]:
    """Return what a plan has of each spec, by the spec's name, in its unit."""
    gpus = sum(pool.gpus for pool in plan.pools if not pool.is_host)
    return {
        "iteration_seconds": forecast.iteration_seconds,
        "gpus": gpus,
        "cost_usd": forecast.cost_usd,
        "usd_per_hour": forecast.cost_usd * SECONDS_PER_HOUR / forecast.iteration_seconds,
        "energy_joules": forecast.energy_joules,
        "memory_headroom_fraction": headroom_fraction(forecast),
        "staleness": plan.staleness,
    }


def headroom_fraction(forecast: Forecast) -> float:
    """Return the share of memory that stays free on the GPU that is fullest at its peak."""
    return min(
        (1 - each.gpu_peak_bytes / each.capacity_bytes for each in forecast.memory), default=1.0
    )


def violations(plan: Plan, forecast: Forecast, specs: Specs) -> tuple[Violation, ...]:
    """Return the limits that a simulated plan does not keep."""
    values = spec_values(plan, forecast)
    return tuple(
        Violation(name, limit, values[name])
        for name, limit in specs.given.items()
        if not is_kept(name, limit, values[name])
    )


def is_kept(spec: str, limit: float, found: float) -> bool:
    """Tell whether a value keeps a limit: headroom from below, everything else from above."""
    if spec == "memory_headroom_fraction":
        return found >= limit - ROUNDING
    return found <= limit * (1 + ROUNDING)


def exceeded_spec(
    specs: Specs, *, gpus: int, iteration_seconds: float, loads: Iterable[PoolLoad]
) -> str | None:
    """Return the first limit that no plan with these pools can keep; None if none is ruled out.

    Args:
        gpus: GPUs that the pools hold together, or fewer.
        iteration_seconds: Lower bound on the length of the iteration.
        loads: For every pool its rates and lower bounds on the seconds in which it works.
    """
    loads = tuple(loads)
    rates = [load.rates for load in loads]
    least = {
        "iteration_seconds": iteration_seconds,
        "gpus": gpus,
        "cost_usd": iteration_usd(rates, iteration_seconds),
        "usd_per_hour": iteration_usd(rates, SECONDS_PER_HOUR),
        "energy_joules": iteration_joules(loads, iteration_seconds),
    }
    for name, limit in specs.given.items():
        if name in least and not is_kept(name, limit, least[name]):
            return name
    return None


def usable_fraction(specs: Specs) -> float:
    """Return the share of every GPU's memory that a plan's peak may fill."""
    return 1 - (specs.memory_headroom_fraction or 0.0)


def allowed_modes(specs: Specs) -> tuple[Mode, ...]:
    """Return the modes in which weights are no older than the specs let them be."""
    return ("sync", "one-step-off") if specs.staleness else ("sync",)
