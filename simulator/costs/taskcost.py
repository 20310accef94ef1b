"""The answer of every cost function: seconds by cause, each with source and spread."""

from dataclasses import dataclass

from rlplan.estimate import Estimate, total


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


def cost_of(parts: dict[str, Estimate]) -> TaskCost:
    """Return the cost made of these parts, in seconds, without those that take no time."""
    return TaskCost(tuple((name, part) for name, part in parts.items() if part.seconds > 0))
