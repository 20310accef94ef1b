"""Which plans keep a job's limits."""

from dataclasses import dataclass, replace
from math import inf

from rlplan.errors import InfeasibleError
from rlplan.job import Job, Specs
from rlplan.plan import USUAL_MODE, WHOLE_BATCH_MODES, Mode, Plan
from rlplan.planner.objectives import limited_objectives, load_objective
from rlplan.results.forecast import Forecast
from rlplan.simulator.timeline.expenses import SECONDS_PER_HOUR

# What float sums may differ by when they run in another order; a limit that is met to this share is met.
ROUNDING = 1e-9
# Share of every GPU's memory that plans leave free where the user asks for nothing: what frameworks keep
# beside the terms that are counted, and longer batches than expected, need some.
USUAL_HEADROOM = 0.10


@dataclass(frozen=True, slots=True)
class Violation:
    """Hold a limit that a plan does not keep, and what the plan has instead."""

    spec: str
    limit: float
    found: float


def spec_values(plan: Plan, forecast: Forecast) -> dict[str, float]:
    """Return what a plan has of each spec, by the spec's name, in its unit."""
    limited = {
        spec: load_objective(name).figure(forecast) for spec, name in limited_objectives().items()
    }
    return limited | {
        "gpus": sum(pool.gpus for pool in plan.pools if not pool.is_host),
        "usd_per_hour": forecast.cost_usd * SECONDS_PER_HOUR / forecast.iteration_seconds,
        "memory_headroom_fraction": forecast.free_fraction,
        "staleness": plan.staleness,
        "run_seconds": run_seconds(plan, forecast),
    }


def run_seconds(plan: Plan, forecast: Forecast) -> float:
    """Return what a job's whole run takes on average, as far as it is known; infinite where it never ends or is not said."""
    iterations = plan.job.iterations
    if iterations is None:
        return inf
    if forecast.spot is not None:
        return inf if forecast.spot.run_seconds is None else forecast.spot.run_seconds
    each, goodput = forecast.iteration_seconds, forecast.goodput
    if goodput is not None:
        each = inf if goodput.iteration_seconds is None else goodput.iteration_seconds
    return iterations * (each + forecast.beside_seconds)


def with_deadline(specs: Specs, job: Job) -> Specs:
    """Return limits whose deadline of a whole run limits an iteration too: none is shorter on average than its own seconds."""
    if specs.run_seconds is None or job.iterations is None:
        return specs
    each = specs.run_seconds / job.iterations
    return replace(specs, iteration_seconds=min(each, specs.iteration_seconds or each))


def violations(plan: Plan, forecast: Forecast, specs: Specs) -> tuple[Violation, ...]:
    """Return the limits that a simulated plan does not keep."""
    given = specs.given
    if not given:
        return ()
    values = spec_values(plan, forecast)
    return tuple(
        Violation(name, limit, values[name])
        for name, limit in given.items()
        if not is_kept(name, limit, values[name])
    )


def broken_words(plan: Plan, forecast: Forecast) -> tuple[str, ...]:
    """Return a sentence for each limit of its own job that a plan does not keep."""
    return tuple(
        f"breaks a limit: specs.{each.spec} is {each.limit:.6g}, this plan has {each.found:.6g}"
        for each in violations(plan, forecast, plan.job.specs)
    )


def faults(plan: Plan, forecast: Forecast) -> tuple[str, ...]:
    """Return in words why a plan is no answer to its own job: it does not fit, or breaks limits; nothing of one that is."""
    misfit = () if forecast.feasible else ("does not fit",)
    return (*misfit, *broken_words(plan, forecast))


def check_limits(plan: Plan, forecast: Forecast, file: str) -> None:
    """Refuse a plan that breaks a limit of its own job.

    Raises:
        InfeasibleError: Names the file, the limit and what the plan has instead.
    """
    for words in broken_words(plan, forecast):
        raise InfeasibleError(f"{file}: {words}")


def is_kept(spec: str, limit: float, found: float) -> bool:
    """Tell whether a value keeps a limit: headroom from below, everything else from above."""
    if spec == "memory_headroom_fraction":
        return found >= limit - ROUNDING
    return found <= limit * (1 + ROUNDING)


def usable_fraction(specs: Specs) -> float:
    """Return the share of every GPU's memory that a plan's peak may fill."""
    return 1 - (specs.memory_headroom_fraction or 0.0)


def roomy(job: Job) -> Specs:
    """Return the job's specs, which leave the usual share of memory free where they say nothing of it."""
    if job.specs.memory_headroom_fraction is not None:
        return job.specs
    return replace(job.specs, memory_headroom_fraction=USUAL_HEADROOM)


def allowed_modes(specs: Specs) -> tuple[Mode, ...]:
    """Return the modes in which weights are no older than the specs let them be."""
    return WHOLE_BATCH_MODES if specs.staleness else (USUAL_MODE,)
