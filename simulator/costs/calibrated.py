"""Factors of a site on what work costs: applied once, to a whole task or transition."""

from dataclasses import replace

from profiles.facts import Facts
from rlplan.calibration import Factor, StageKind
from rlplan.estimate import Estimate, Source
from simulator.costs.taskcost import TaskCost
from simulator.placed.task import PlacedTask

KINDS: dict[str, StageKind] = {
    "generate": "generation",
    "infer": "inference",
    "train": "training",
}


def task_at_site(cost: TaskCost, placed: PlacedTask) -> TaskCost:
    """Return what a task costs at the site of its facts, in seconds by cause; reward functions as they are."""
    kind = KINDS.get(placed.task.kind)
    return cost if kind is None else at_site(cost, kind, placed.layout.engine, placed.facts)


def site_factor(placed: PlacedTask) -> float:
    """Return how many times as long a task takes at the site of its facts."""
    kind = KINDS.get(placed.task.kind)
    factor = kind and placed.facts.calibration.factor(kind, placed.layout.engine)
    return factor.value if factor else 1.0


def at_site(cost: TaskCost, kind: StageKind, engine: str, facts: Facts) -> TaskCost:
    """Return what work costs at a site, in seconds by cause, as well known as the site's factor is."""
    factor = facts.calibration.factor(kind, engine)
    if factor is None:
        return cost
    return TaskCost(tuple((name, _times(part, factor)) for name, part in cost.parts))


def _times(part: Estimate, factor: Factor) -> Estimate:
    seconds = part.seconds * factor.value
    source = max(part.source, Source.FITTED)
    return replace(part, seconds=seconds, spread_seconds=seconds * factor.spread, source=source)
