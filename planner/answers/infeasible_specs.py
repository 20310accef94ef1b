"""Why no plan keeps the specs: which of them bind, and the nearest value that a plan can keep."""

import math
from dataclasses import replace
from typing import Any

from rlplan.errors import InfeasibleError
from rlplan.job import Job
from rlplan.planner.answers.frontier import Solve
from rlplan.planner.objectives import limited_objectives, load_objective
from rlplan.planner.requests.specs import ROUNDING, is_kept, spec_values
from rlplan.results.searched import Candidate
from rlplan.specs import Specs

# How close a limit without an objective of its own is narrowed down: to this share of it.
PRECISION_FRACTION = 0.001
# Specs that every search can keep: synchronous plans are never too old.
ALWAYS_KEPT = frozenset({"staleness"})
SHOWN_DIGITS = 4
# Of limits on no objective's figure.
UNITS = {"gpus": "GPUs", "usd_per_hour": "USD/h", "memory_headroom_fraction": ""}


def infeasible_specs_error(
    job: Job, specs: Specs, solve: Solve, none_fits: InfeasibleError
) -> InfeasibleError:
    """Return an error that says which specs bind and what the nearest feasible values are.

    Args:
        solve: The search that found no plan under `specs`.
        none_fits: What it said, which is the answer if no plan fits even without limits.
    """
    free = Specs(staleness=specs.staleness)
    given = [name for name in specs.given if name not in ALWAYS_KEPT]
    if not given or _best(solve, "throughput", free) is None:
        return none_fits
    lines = [_alone(name, specs, solve) for name in given]
    told = [line for line in lines if line]
    if told:
        return InfeasibleError(
            f"no plan of job {job.name!r} keeps its specs; with the others kept, "
            + " or ".join(told)
        )
    lines = [_at_best(name, specs, free, solve) for name in given]
    hard = [line for line in lines if line]
    why = "; ".join(hard) or "each can be kept by itself, but not with the others"
    return InfeasibleError(
        f"no plan of job {job.name!r} keeps its specs, not even with one of them left out: {why}"
    )


def _alone(name: str, specs: Specs, solve: Solve) -> str | None:
    """Say what a spec would have to be if only it gave way; None if that would not be enough."""
    others = replace(specs, **{name: None})
    nearest = nearest_value(name, others, solve)
    if nearest is None:
        return None
    return f"{_words(name, specs)} would have to be {show_value(name, nearest)}"


def _at_best(name: str, specs: Specs, free: Specs, solve: Solve) -> str | None:
    """Say what a spec can be at best if it is the only one; None if it can be kept."""
    nearest = nearest_value(name, free, solve)
    if nearest is None or is_kept(name, specs.given[name], nearest):
        return None
    return f"{_words(name, specs)}, where no plan at all reaches beyond {show_value(name, nearest)}"


def nearest_value(name: str, others: Specs, solve: Solve) -> float | None:
    """Return the best value of a spec that plans which keep the others have; None if there are none.

    Exact where the spec bounds an objective, and for GPUs; to a part in a thousand elsewhere.
    """
    if name in limited_objectives():
        best = _best(solve, limited_objectives()[name], others)
        return None if best is None else _value(best, name)
    best = _best(solve, "cost" if name == "usd_per_hour" else "throughput", others)
    if best is None:
        return None
    reached = _value(best, name)
    if name == "memory_headroom_fraction":
        return _highest_headroom(reached, others, solve)
    return _lowest(name, reached, others, solve)


def _lowest(name: str, reached: float, others: Specs, solve: Solve) -> float:
    """Return the lowest limit that a plan keeps, by halving what lies between 0 and a known one."""
    low, whole = 0.0, name == "gpus"
    while reached - low > (1 if whole else PRECISION_FRACTION * reached):
        middle = (low + reached) // 2 if whole else (low + reached) / 2
        best = _best_under(name, int(middle) if whole else middle, others, solve)
        if best is None:
            low = middle
        else:
            reached = _value(best, name)
    return reached


def _highest_headroom(reached: float, others: Specs, solve: Solve) -> float:
    low, high = max(0.0, reached), 1.0
    while high - low > PRECISION_FRACTION:
        middle = (low + high) / 2
        best = _best_under("memory_headroom_fraction", middle, others, solve)
        if best is None:
            high = middle
        else:
            low = _value(best, "memory_headroom_fraction")
    return low


def _best_under(name: str, limit: float, others: Specs, solve: Solve) -> Candidate | None:
    changes: dict[str, Any] = {name: limit}
    return _best(solve, "throughput", replace(others, **changes))


def _best(solve: Solve, objective: str, specs: Specs) -> Candidate | None:
    try:
        return solve(objective, specs).plans[0]
    except InfeasibleError:
        return None


def _value(best: Candidate, name: str) -> float:
    return spec_values(best.plan, best.forecast)[name]


def _words(name: str, specs: Specs) -> str:
    side = "at least" if name == "memory_headroom_fraction" else "at most"
    return f"specs.{name} ({side} {show_value(name, specs.given[name])})"


def show_value(name: str, value: float) -> str:
    """Return a spec's value for people, with its unit, rounded to the side on which it is kept."""
    if value > 0 and name != "gpus":
        step = 10 ** (math.floor(math.log10(value)) - SHOWN_DIGITS + 1)
        if name == "memory_headroom_fraction":
            value = math.floor(value / step * (1 + ROUNDING)) * step
        else:
            value = math.ceil(value / step * (1 - ROUNDING)) * step
    objective = limited_objectives().get(name)
    unit = load_objective(objective).limit_unit if objective else UNITS[name]
    return f"{value:,.{SHOWN_DIGITS}g} {unit}".strip()
