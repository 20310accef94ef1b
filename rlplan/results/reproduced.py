"""A published evaluation, forecast point by point, with its claims marked as holding or failing."""

from dataclasses import dataclass
from typing import Literal

Quantity = Literal["tokens_per_second", "frames_per_second", "seconds", "bytes"]

REPRODUCTION_VERSION: Literal[1] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Hold one point of a figure: what rlplan forecasts, and what was published where that is held.

    Attributes:
        panel: Part of the figure, such as `PPO 7B`.
        series: Curve or group of bars, such as `DS-Chat`.
        forecast: In the quantity's unit; None where nothing fits.
        published: The published value; None where rlplan holds none.
        plan: The forecast's plan in a few words.
        reason: Why there is no forecast.
        is_comparable: Whether the published value is of the same thing (a run time on another machine
            is not).
    """

    figure: str
    panel: str
    series: str
    gpus: int
    quantity: Quantity
    forecast: float | None = None
    published: float | None = None
    plan: str = ""
    reason: str = ""
    is_comparable: bool = True

    @property
    def error_fraction(self) -> float | None:
        """Return (forecast - published) / published; None where either is missing."""
        if self.forecast is None or not self.published or not self.is_comparable:
            return None
        return (self.forecast - self.published) / self.published


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Hold one claim of the publication and what the forecasts say to it.

    Attributes:
        where: Section or figure that makes it.
        holds: Whether it holds in the forecasts.
        evidence: The figures that say so.
    """

    where: str
    text: str
    holds: bool
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Hold a reproduced evaluation.

    Attributes:
        source: The publication.
        notes: What a reader must know before judging: assumptions, known inconsistencies.
    """

    version: Literal[1] = REPRODUCTION_VERSION
    name: str
    title: str
    source: str
    notes: tuple[str, ...]
    points: tuple[Point, ...]
    claims: tuple[Claim, ...]
