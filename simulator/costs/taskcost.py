"""The answer of every cost function: seconds by cause, each with source and spread."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from rlplan.estimate import Estimate, Source, total


@dataclass(frozen=True, slots=True)
class TaskCost:
    """Hold what a task costs on its pool, by cause.

    Attributes:
        parts: Pairs of cause and seconds, in the order in which they occur; they sum to the total.
    """

    parts: tuple[tuple[str, Estimate], ...]

    @property
    def total(self) -> Estimate:
        """Return the sum of all parts in seconds."""
        return total(estimate for _, estimate in self.parts)

    def each(self, changed: Callable[[str, Estimate], Estimate]) -> "TaskCost":
        """Return the cost with every part changed, told its cause."""
        return TaskCost(tuple((name, changed(name, part)) for name, part in self.parts))

    def seconds_of(self, *causes: str) -> float:
        """Return the seconds that causes take together."""
        return sum(part.seconds for name, part in self.parts if name in causes)


def cost_of(parts: dict[str, Estimate]) -> TaskCost:
    """Return the cost made of these parts, in seconds, without those that take no time."""
    return TaskCost(tuple((name, part) for name, part in parts.items() if part.seconds > 0))


def times(cost: TaskCost, factor: float) -> TaskCost:
    """Return what it costs to do the same `factor` times, in seconds by cause."""
    return cost.each(lambda _, part: part * factor)


def with_spread(cost: TaskCost, spread: float) -> TaskCost:
    """Return a cost with the relative spread that an engine's forecasts showed, where it is known.

    Parts that a profile measured keep their own.
    """
    if not spread:
        return cost
    return cost.each(
        lambda _, part: (
            replace(part, spread_seconds=part.seconds * spread)
            if part.source >= Source.FITTED
            else part
        )
    )
