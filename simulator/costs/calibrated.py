"""Factors of a site on what work costs: applied once, to the parts of a whole task or transition."""

from dataclasses import replace

from profiles.facts import Facts
from rlplan.calibration import Factor, WorkKind
from rlplan.estimate import Estimate, Source
from simulator.costs.passes import DRIVER
from simulator.costs.taskcost import TaskCost
from simulator.placed.task import PlacedTask

KINDS: dict[str, WorkKind] = {
    "generate": "generation",
    "infer": "inference",
    "train": "training",
}


def task_at_site(cost: TaskCost, placed: PlacedTask) -> TaskCost:
    """Return what a task costs at the site of its facts, in seconds by cause; reward functions as they are.

    Without a factor, parts of a framework's step are known as well as the framework's sheet says.
    """
    least_spread = placed.framework.spread_fraction
    parts = ((name, part, factor_of(placed, name)) for name, part in cost.parts)
    return TaskCost(
        tuple(
            (name, _times(part, factor) if factor else _at_least(part, least_spread))
            for name, part, factor in parts
        )
    )


def transition_at_site(cost: TaskCost, facts: Facts, least_spread: float) -> TaskCost:
    """Return what a transition costs at the site of the facts, in seconds by cause.

    Args:
        least_spread: Relative, of a framework's transitions where the site has no factor.
    """
    factor = facts.calibration.factor("transition")
    return TaskCost(
        tuple(
            (name, _times(part, factor) if factor else _at_least(part, least_spread))
            for name, part in cost.parts
        )
    )


def times_of(placed: PlacedTask, part: str = "") -> float:
    """Return how many times as long a part of a task takes at the site of its facts."""
    factor = factor_of(placed, part)
    return factor.value if factor else 1.0


def factor_of(placed: PlacedTask, part: str = "") -> Factor | None:
    """Return the site's factor of a part of a task; None where it has none."""
    calibration = placed.facts.calibration
    if part == DRIVER:
        return calibration.overhead
    kind = KINDS.get(placed.task.kind)
    return calibration.factor(kind, placed.layout.engine) if kind else None


def _times(part: Estimate, factor: Factor) -> Estimate:
    seconds = part.seconds * factor.value
    source = max(part.source, Source.FITTED)
    return replace(part, seconds=seconds, spread_seconds=seconds * factor.spread, source=source)


def _at_least(part: Estimate, spread: float) -> Estimate:
    """Return an estimate whose relative spread is no smaller."""
    if part.spread_seconds >= part.seconds * spread:
        return part
    return replace(part, spread_seconds=part.seconds * spread)
