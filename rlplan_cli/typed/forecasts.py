"""A forecast as tools answer it: a step's seconds with their interval, memory by pool, seconds by task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlplan.files.frozen import FrozenDict

if TYPE_CHECKING:
    from rlplan.plan import Plan
    from rlplan.results.forecast import Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """Hold the peak of a pool's fullest GPU.

    Attributes:
        during: The task during which it occurs.
        terms: Bytes by term at that moment.
    """

    pool: str
    peak_bytes: int
    capacity_bytes: int
    during: str
    terms: FrozenDict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSeconds:
    """Hold what one task of a step takes.

    Attributes:
        interval_seconds: (p10, p90).
        source: Weakest source among its parts: measured, interpolated, fitted or datasheet.
        parts: Seconds by cause.
    """

    name: str
    pool: str
    stage: str
    seconds: float
    interval_seconds: tuple[float, float]
    source: str
    parts: FrozenDict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepForecast:
    """Hold the forecast of a step.

    Attributes:
        interval_seconds: (p10, p90) of a step.
        tokens_per_second: Of the whole plan.
        cost_usd: Of a step.
        effects: What acts on a step beside its tasks (speculation, replicas that read prompts alone, a cache in host memory,
            lending, losses of spot nodes), and what a run has beside its steps, as `rlplan simulate` says it.
        reasons: Why it does not fit; the last may name the nearest change that does.
        may_be_off: Where the forecast is least sure.
        assumed: What was assumed where the job says nothing.
    """

    fits: bool
    step_seconds: float
    interval_seconds: tuple[float, float]
    tokens_per_second: float
    cost_usd: float
    memory: tuple[PoolMemory, ...]
    tasks: tuple[TaskSeconds, ...]
    effects: tuple[str, ...]
    reasons: tuple[str, ...]
    may_be_off: tuple[str, ...]
    assumed: tuple[str, ...]


def step_forecast(forecast: Forecast) -> StepForecast:
    """Return a forecast as tools answer it."""
    from rlplan.reports.tables.plans import effect_lines

    return StepForecast(
        fits=forecast.feasible,
        step_seconds=forecast.iteration_seconds,
        interval_seconds=forecast.iteration_seconds_interval,
        tokens_per_second=forecast.tokens_per_second,
        cost_usd=forecast.cost_usd,
        memory=tuple(
            PoolMemory(
                pool=each.pool,
                peak_bytes=each.gpu_peak_bytes,
                capacity_bytes=each.capacity_bytes,
                during=each.peak_task,
                terms=each.terms,
            )
            for each in forecast.memory
        ),
        tasks=tuple(
            TaskSeconds(
                name=each.name,
                pool=each.pool,
                stage=each.stage,
                seconds=each.seconds,
                interval_seconds=each.interval_seconds,
                source=each.source,
                parts=each.parts,
            )
            for each in forecast.costs
        ),
        effects=tuple(line.strip() for line in effect_lines(forecast)),
        reasons=forecast.infeasible_reasons,
        may_be_off=forecast.warnings,
        assumed=forecast.assumptions,
    )


def step_words(found: StepForecast) -> str:
    """Return a step in a line: `a step takes 44.35 s (p10 to p90: 35.12 s to 53.58 s) and 1.36 USD`."""
    from rlplan.units import show_seconds

    low, high = map(show_seconds, found.interval_seconds)
    seconds = show_seconds(found.step_seconds)
    return f"a step takes {seconds} (p10 to p90: {low} to {high}) and {found.cost_usd:,.2f} USD"


def fullest(found: StepForecast) -> PoolMemory | None:
    """Return the pool that is fullest; None where memory is not known."""
    return max(
        found.memory, key=lambda each: each.peak_bytes / max(1, each.capacity_bytes), default=None
    )


def memory_words(found: StepForecast) -> str:
    """Return the fullest pool in a line: `71.5 of 79.6 GiB on pool p0, during actor.generate`."""
    from rlplan.units import show_filled

    full = fullest(found)
    if full is None:
        return "memory is not known"
    filled = show_filled(full.peak_bytes, full.capacity_bytes)
    return f"{filled} on pool {full.pool}, during {full.during}"


def lines(*texts: str | Iterable[str]) -> str:
    """Return texts and those of collections as lines, without empty ones."""
    each = (line for text in texts for line in ([text] if isinstance(text, str) else text))
    return "\n".join(line for line in each if line)


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return a plan as its file holds it; saved as JSON it is a plan's file."""
    from rlplan.files.writing import plain
    from rlplan.results.stored import plan_values

    document: dict[str, Any] = plain(plan_values(plan))
    return document
