"""What measured steps tell of a site: their times beside the parts of their forecasts that factors lengthen."""

from dataclasses import dataclass
from math import hypot

from rlplan.algorithms import load_algorithm
from rlplan.calibration import LINKS, STEP_STAGES, Link, WorkKind
from rlplan.dataflow import tasks_of
from rlplan.files.frozen import FrozenDict
from rlplan.profiles.analytic.efficiencies import Spreads, load_spreads
from rlplan.results.accuracy import Row, StageSeconds
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import MeasuredRun
from rlplan.simulator.costs.taskcost import KINDS
from rlplan.simulator.timeline.pool_memory import TRANSITION
from rlplan.simulator.validation import compare

# What steps call the parts of a forecast's critical path.
PATH = {
    "generation": "generation",
    "preparation": "log_probs",
    "training": "training",
    TRANSITION: "weight_sync",
}
# A sum of stages that is longer than the step by more than rounding: stages overlap.
OVERLAP_FRACTION = 0.01


@dataclass(frozen=True, slots=True)
class Part:
    """Hold forecast seconds that factors lengthen; without any they were measured, and stay.

    Attributes:
        kind: Of the work; its engine's factor takes the place of its own where a site ran several.
        link: That collectives of the work are limited by, if these seconds are theirs.
        host: Whether they are the host's own seconds of a step.
    """

    seconds: float
    kind: WorkKind | None = None
    engine: str = ""
    link: Link | None = None
    host: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """Hold a measured time and the parts of its forecast.

    Attributes:
        spread: Relative, one sigma: of the measured around a forecast whose factors are right.
    """

    label: str
    measured_seconds: float
    parts: tuple[Part, ...]
    spread: float


def path_seconds_of(forecast: Forecast) -> FrozenDict[str, float]:
    """Return what stages occupy on the critical path of a forecast, by the names that steps give them."""
    return FrozenDict({PATH[stage]: seconds for stage, seconds in forecast.stage_seconds.items()})


def observations_of(row: Row) -> tuple[Observation, ...]:
    """Return what a row of an accuracy table tells of its site: its stages, and the rest of the step.

    Where stages overlap, a step is made of what each occupies on the critical path. Where that is not told,
    it stands for all of them in the proportion of their forecasts, if none was published.
    """
    spreads = load_spreads()
    whole = row.forecast.seconds if row.forecast is not None else 0.0
    found = [
        Observation(
            f"{row.label}, {name}",
            stage.measured_seconds,
            _parts(name, stage),
            hypot(
                spreads.within_site.value, spreads.of_step.value * whole / stage.forecast_seconds
            ),
        )
        for name, stage in row.stages.items()
        if stage.measured_seconds and stage.forecast_seconds > 0
    ]
    step = _step_of(row, spreads)
    return (*found, step) if step else tuple(found)


def observations_of_run(
    run: MeasuredRun, forecast: Forecast, within: float | None = None
) -> tuple[Observation, ...]:
    """Return what a run of a plan tells of its site: the medians of its tasks and of its transition.

    Args:
        forecast: Of the run's plan at the lengths that the run had.
        within: Relative, one sigma: by which tasks are off around forecasts with the right factors; None takes that of
            frameworks' sites.

    Raises:
        PlanError: The run has no iteration after its warm-up, or not all tasks of the forecast.
    """
    within = load_spreads().within_site.value if within is None else within
    job, found = run.plan.job, []
    kinds = {
        task.name: KINDS.get(task.kind) for task in tasks_of(load_algorithm(job.algorithm), job)
    }
    for row in compare(forecast, run).rows:
        kind = "transition" if row.name == TRANSITION else kinds.get(row.name)
        if kind is None or row.forecast_seconds <= 0 or row.measured_median_seconds <= 0:
            continue
        engine = run.plan.tasks[row.name].engine if row.name in run.plan.tasks else ""
        part = Part(row.forecast_seconds, kind, engine)
        found.append(Observation(row.name, row.measured_median_seconds, (part,), within))
    return tuple(found)


def _parts(name: str, stage: StageSeconds, scale: float = 1.0) -> tuple[Part, ...]:
    """Return the forecast seconds of a stage, those of other stages in it and those on links apart."""
    kind = STEP_STAGES[name]
    parts = [
        Part(seconds * scale, STEP_STAGES[inner]) for inner, seconds in stage.inner_seconds.items()
    ]
    left = stage.forecast_seconds - sum(stage.inner_seconds.values())
    for link in LINKS:
        seconds = min(stage.link_seconds.get(link, 0.0), left)
        if seconds > 0:
            left -= seconds
            parts.append(Part(seconds * scale, kind, stage.engine, link))
    return (Part(left * scale, kind, stage.engine), *parts)


def _step_of(row: Row, spreads: Spreads) -> Observation | None:
    """Return what a whole step tells beyond its stages; None if that is nothing."""
    if not row.measured_seconds or row.forecast is None:
        return None
    forecast_seconds = row.forecast.seconds
    if row.path_seconds:
        return _overlapping_step_of(row, forecast_seconds, spreads)
    inner = {name for stage in row.stages.values() for name in stage.inner_seconds}
    stages = {name: stage for name, stage in row.stages.items() if name not in inner}
    known = [Part(stage.measured_seconds) for stage in stages.values() if stage.measured_seconds]
    own_seconds = forecast_seconds - row.given_seconds
    beyond = own_seconds - sum(stage.forecast_seconds for stage in stages.values())
    scale = 1.0
    if beyond < -OVERLAP_FRACTION * forecast_seconds:
        if known:
            return None
        scale = own_seconds / (own_seconds - beyond)
    if row.given_seconds:
        known.append(Part(row.given_seconds))
    rest = [
        part
        for name, stage in stages.items()
        if not stage.measured_seconds and stage.forecast_seconds > 0
        for part in _parts(name, stage, scale)
    ]
    if beyond > 0:
        rest.append(Part(beyond, host=True))
    if not rest:
        return None
    open_seconds = sum(part.seconds for part in rest)
    share = open_seconds / (open_seconds + sum(part.seconds for part in known))
    spread = hypot(spreads.within_site.value * share, spreads.of_step.value if known else 0.0)
    return Observation(f"{row.label}, step", row.measured_seconds, (*known, *rest), spread)


def _overlapping_step_of(row: Row, forecast_seconds: float, spreads: Spreads) -> Observation:
    parts = [
        Part(seconds, STEP_STAGES[name])
        for name, seconds in row.path_seconds.items()
        if seconds > 0
    ]
    beyond = forecast_seconds - row.given_seconds - sum(part.seconds for part in parts)
    if beyond > 0:
        parts.append(Part(beyond, host=True))
    if row.given_seconds:
        parts.append(Part(row.given_seconds))
    assert row.measured_seconds is not None
    spread = spreads.within_site.value
    return Observation(f"{row.label}, step", row.measured_seconds, tuple(parts), spread)
