"""Published recipes of frameworks, each with what is forecast of it and what was measured, where that was published."""

from dataclasses import dataclass
from typing import Literal

GALLERY_VERSION: Literal[1] = 1

# Whether a recipe's run is known to have fit in memory, to have run out of memory, or neither.
Outcome = Literal["ran", "ran out", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Hold one recipe: its settings in words, its forecast, what was published of its run.

    Attributes:
        name: What its table or case calls it.
        framework: As its users write it.
        version: Empty where the source names none.
        gpu: The device sheet's name, or the source's word where no sheet is of it.
        mode: How iterations follow each other.
        work: Prompts, samples and lengths, in words.
        layout: Parallel sizes of training and generation, in words.
        forecast_seconds: Of a step, uncalibrated; None where the recipe is refused.
        interval_seconds: (p10, p90) of it.
        measured_seconds: Of a step; None where none was published.
        is_fitted: Whether a constant rests on the measurement.
        cost_usd: Of a step at list prices; None where it is not known.
        said: What is said of its memory; empty where nothing is.
        filled_fraction: Of the fullest GPU; None where nothing is said.
        outcome: What happened to its memory; empty where that was not published.
        refused: Why there is no forecast; empty where there is one.
        source: Where the recipe stands: an address, or a file of the framework's repository.
    """

    name: str
    framework: str
    version: str
    algorithm: str
    model: str
    gpu: str
    gpus: int
    mode: str
    work: str
    layout: str
    forecast_seconds: float | None = None
    interval_seconds: tuple[float, float] | None = None
    measured_seconds: float | None = None
    is_fitted: bool = False
    cost_usd: float | None = None
    said: str = ""
    filled_fraction: float | None = None
    outcome: Outcome = ""
    refused: str = ""
    source: str

    @property
    def error_fraction(self) -> float | None:
        """Return (forecast - measured) / measured; None where one of both is not known."""
        if self.forecast_seconds is None or not self.measured_seconds:
            return None
        return (self.forecast_seconds - self.measured_seconds) / self.measured_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """Hold all recipes. The file `reports/published/gallery.json`."""

    version: Literal[1] = GALLERY_VERSION
    recipes: tuple[Recipe, ...]
