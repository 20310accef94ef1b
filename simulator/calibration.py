"""Fit the factors of a site on its own steps: robustly, drawn to 1, and only what the steps tell apart.

In logarithms: a measured time is a sum of forecast parts, each times its factor, but for an error whose
spread is that of forecasts within a site; a factor's logarithm is 0 but for a spread between sites
(`profiles/fits/calibration.yaml`). Together that is ridge regression; the weight of residuals beyond a
few spreads is cut (Huber 1981, Robust Statistics, chapter 7), so that one odd row does not move a site.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, sqrt

import numpy as np

from profiles.analytic.calibration import Spreads, load_spreads
from rlplan.algorithms import load_algorithm
from rlplan.calibration import (
    ENGINE_KINDS,
    OVERHEAD,
    STAGE_KINDS,
    STEP_STAGES,
    Calibration,
    Factor,
    StageKind,
    engine_factor,
)
from rlplan.dataflow import tasks_of
from rlplan.errors import UserError
from rlplan.files.frozen import FrozenDict
from rlplan.results.accuracy import Row
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import MeasuredRun
from simulator.costs.calibrated import KINDS
from simulator.placed.columns import Floats
from simulator.timeline.pool_memory import TRANSITION
from simulator.validation import compare

# A factor is told apart if no more than this share of it lies along directions that the rows do not show.
LOOSE_FRACTION = 0.05
# A sum of stages that is longer than the step by more than rounding: stages overlap.
OVERLAP_FRACTION = 0.01
MOST_ROUNDS, SMALLEST_STEP, LARGEST_STEP = 200, 1e-12, 1.0


@dataclass(frozen=True, slots=True)
class Part:
    """Hold forecast seconds that one factor lengthens; without a kind, seconds that were measured."""

    seconds: float
    kind: StageKind | None = None
    engine: str = ""
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


@dataclass(frozen=True, slots=True)
class Fitted:
    """Hold a site's factors, and what its rows did not show, one sentence each."""

    calibration: Calibration
    notes: tuple[str, ...]


def observations_of(row: Row) -> tuple[Observation, ...]:
    """Return what a row of an accuracy table tells of its site: its stages, and the rest of the step.

    Stages that overlap say nothing of the step beyond themselves; where none was published, the step
    stands for all of them in the proportion of their forecasts.
    """
    spreads = load_spreads()
    within = spreads.within_site.value
    found = [
        Observation(
            f"{row.label}, {name}",
            stage.measured_seconds,
            (_part(name, stage.forecast_seconds, stage.engine),),
            within,
        )
        for name, stage in row.stages.items()
        if stage.measured_seconds and stage.forecast_seconds > 0
    ]
    step = _step_of(row, spreads)
    return (*found, step) if step else tuple(found)


def observations_of_run(run: MeasuredRun, forecast: Forecast) -> tuple[Observation, ...]:
    """Return what a run of a plan tells of its site: the medians of its tasks and of its transition.

    Args:
        forecast: Of the run's plan at the lengths that the run had.

    Raises:
        PlanError: The run has no iteration after its warm-up, or not all tasks of the forecast.
    """
    within = load_spreads().within_site.value
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


def _part(stage: str, seconds: float, engine: str) -> Part:
    return Part(seconds, STEP_STAGES[stage], engine)


def _step_of(row: Row, spreads: Spreads) -> Observation | None:
    if not row.measured_seconds or row.forecast is None:
        return None
    forecast_seconds = row.forecast.seconds
    known = [
        Part(stage.measured_seconds) for stage in row.stages.values() if stage.measured_seconds
    ]
    if row.given_seconds:
        known.append(Part(row.given_seconds))
    rest = [
        _part(name, stage.forecast_seconds, stage.engine)
        for name, stage in row.stages.items()
        if not stage.measured_seconds and stage.forecast_seconds > 0
    ]
    stages_seconds = sum(stage.forecast_seconds for stage in row.stages.values())
    beyond = forecast_seconds - stages_seconds - row.given_seconds
    if beyond < -OVERLAP_FRACTION * forecast_seconds:
        if known:
            return None
        scale = forecast_seconds / stages_seconds
        rest = [replace(part, seconds=part.seconds * scale) for part in rest]
    elif beyond > 0:
        rest.append(Part(beyond, host=True))
    if not rest:
        return None
    open_seconds = sum(part.seconds for part in rest)
    share = open_seconds / (open_seconds + sum(part.seconds for part in known))
    reading = spreads.reading.value if known else 0.0
    spread = hypot(spreads.within_site.value * share, reading)
    return Observation(f"{row.label}, step", row.measured_seconds, (*known, *rest), spread)


def calibrate(
    observations: Sequence[Observation],
    *,
    site: str = "",
    rests_on: str = "datasheet",
    sources: Sequence[str] = (),
    wanted: Sequence[str] = (),
) -> Fitted:
    """Return the factors of a site.

    Kinds of work that the observations cannot tell apart get one common factor. An engine has a factor of
    its own where the site ran several of its kind.

    Args:
        wanted: Factors, by name, that must be told apart from all others.

    Raises:
        UserError: There is nothing to fit on, or a wanted factor cannot be told apart; the message says
            what to measure.
    """
    if not observations:
        raise UserError("nothing to calibrate on: no row has both a measured time and a forecast")
    spreads = load_spreads()
    by_kind = _fit([_named(each, ()) for each in observations], spreads)
    several = _kinds_of_several_engines(observations)
    by_engine = (
        _fit([_named(each, several) for each in observations], spreads) if several else by_kind
    )
    stages = {kind: by_kind[kind] for kind in STAGE_KINDS if kind in by_kind}
    engines = {
        part.engine: by_engine[engine_factor(part.engine)]
        for each in observations
        for part in each.parts
        if part.kind in several and part.engine
    }
    found = Calibration(
        site=site,
        rests_on=rests_on,
        stages=FrozenDict(stages),
        engines=FrozenDict(engines),
        overhead=by_kind.get(OVERHEAD),
        sources=tuple(sources),
    )
    _check_wanted(found, wanted)
    return Fitted(found, _notes(found))


def _kinds_of_several_engines(observations: Sequence[Observation]) -> tuple[StageKind, ...]:
    """Return the kinds of work that the site did with more than one engine."""
    parts = [part for each in observations for part in each.parts]
    return tuple(
        kind
        for kind in ENGINE_KINDS
        if len({part.engine for part in parts if part.kind == kind and part.engine}) > 1
    )


@dataclass(frozen=True, slots=True)
class _Sum:
    """Hold a measured time with its forecast seconds by factor; `known` seconds have none."""

    measured_seconds: float
    known_seconds: float
    seconds: Mapping[str, float]
    spread: float


def _named(observation: Observation, by_engine: Sequence[StageKind]) -> _Sum:
    known, seconds = 0.0, dict[str, float]()
    for part in observation.parts:
        if part.host:
            name = OVERHEAD
        elif part.kind is None:
            known += part.seconds
            continue
        else:
            own = part.kind in by_engine and part.engine
            name = engine_factor(part.engine) if own else part.kind
        seconds[name] = seconds.get(name, 0.0) + part.seconds
    return _Sum(observation.measured_seconds, known, seconds, observation.spread)


def _fit(sums: Sequence[_Sum], spreads: Spreads) -> dict[str, Factor]:
    """Return the factors by name; those that cannot be told apart have one value."""
    names = list(dict.fromkeys(name for each in sums for name in each.seconds))
    if not names:
        return {}
    priors = {name: _prior(name, spreads) for name in names}
    found: dict[str, Factor] = {}
    groups = _groups(sums, names, priors)
    group_priors = np.array([np.mean([priors[name] for name in group]) for group in groups])
    logs, covariance = _solved(sums, groups, group_priors, spreads.outlier.value)
    for place, group in enumerate(groups):
        own = float(covariance[place, place])
        for name in group:
            found[name] = Factor(
                value=float(np.exp(logs[place])),
                spread=hypot(sqrt(own), spreads.within_site.value),
                rows=sum(bool(set(group) & set(each.seconds)) for each in sums),
                shrinkage=min(1.0, own / float(group_priors[place]) ** 2),
                tied_to=tuple(other for other in group if other != name),
            )
    return found


def _prior(name: str, spreads: Spreads) -> float:
    """Return how far a factor lies from 1 at sites, one sigma of its logarithm."""
    if name == OVERHEAD:
        return spreads.overhead_between_sites.value
    if name in STAGE_KINDS:
        return spreads.between_sites[name].value
    return max(spreads.between_sites[kind].value for kind in ENGINE_KINDS)


def _groups(
    sums: Sequence[_Sum], names: Sequence[str], priors: Mapping[str, float]
) -> list[tuple[str, ...]]:
    """Return the factors that are told apart, each alone, and all others together.

    In units of the error of a row and the spread of a factor between sites, a direction is shown where
    the design's singular value is at least 1: there rows say more than was known before them.
    """
    design = np.array(
        [_shares(each, {}, [(name,) for name in names]) / each.spread for each in sums]
    )
    design = design * np.array([priors[name] for name in names])
    _, values, directions = np.linalg.svd(design, full_matrices=True)
    shown = np.zeros(len(names), dtype=bool)
    shown[: len(values)] = values >= 1
    loose = np.sum(directions[~shown] ** 2, axis=0)
    alone: list[tuple[str, ...]] = [
        (name,) for name, share in zip(names, loose, strict=True) if share <= LOOSE_FRACTION
    ]
    together = tuple(
        name for name, share in zip(names, loose, strict=True) if share > LOOSE_FRACTION
    )
    return [*alone, together] if together else alone


def _shares(each: _Sum, factors: Mapping[str, float], groups: Sequence[tuple[str, ...]]) -> Floats:
    """Return which share of a forecast each group's factor lengthens. Shape (groups,)."""
    scaled = {name: seconds * factors.get(name, 1.0) for name, seconds in each.seconds.items()}
    whole = each.known_seconds + sum(scaled.values())
    return np.array([sum(scaled.get(name, 0.0) for name in group) / whole for group in groups])


def _solved(
    sums: Sequence[_Sum], groups: Sequence[tuple[str, ...]], priors: Floats, outlier: float
) -> tuple[Floats, Floats]:
    """Return the logarithms of the groups' factors and their covariance, by reweighted Gauss-Newton."""
    logs, precision = np.zeros(len(groups)), np.diag(priors**-2.0)
    for _ in range(MOST_ROUNDS):
        curvature, pull = _normal_equations(sums, groups, logs, outlier)
        step = np.linalg.solve(curvature + precision, pull - precision @ logs)
        logs = logs + np.clip(step, -LARGEST_STEP, LARGEST_STEP)
        if np.max(np.abs(step)) < SMALLEST_STEP:
            break
    curvature, _ = _normal_equations(sums, groups, logs, outlier)
    return logs, np.asarray(np.linalg.inv(curvature + precision), dtype=np.float64)


def _normal_equations(
    sums: Sequence[_Sum], groups: Sequence[tuple[str, ...]], logs: Floats, outlier: float
) -> tuple[Floats, Floats]:
    """Return the curvature of the rows' misfit at these logarithms and its pull on each of them."""
    factors = {
        name: float(np.exp(log)) for group, log in zip(groups, logs, strict=True) for name in group
    }
    spread = np.array([each.spread for each in sums])
    seconds = [
        each.known_seconds + sum(own * factors[name] for name, own in each.seconds.items())
        for each in sums
    ]
    residual = np.log([each.measured_seconds / s for each, s in zip(sums, seconds, strict=True)])
    residual = residual / spread
    slope = np.array([_shares(each, factors, groups) for each in sums]) / spread[:, None]
    weight = np.minimum(1.0, outlier / np.maximum(np.abs(residual), outlier))
    return slope.T @ (weight[:, None] * slope), slope.T @ (weight * residual)


def _check_wanted(found: Calibration, wanted: Sequence[str]) -> None:
    factors = dict(found.named())
    for name in wanted:
        if name not in factors:
            known = ", ".join(factors)
            raise UserError(
                f"{name} was not measured in these rows, which show: {known}; give steps with its seconds"
            )
        tied = factors[name].tied_to
        if tied:
            raise UserError(
                f"{name} cannot be told apart from {', '.join(tied)} in these rows: give steps with the "
                f"seconds of each stage, or more steps whose stages have other shares"
            )


def _notes(found: Calibration) -> tuple[str, ...]:
    factors = dict(found.named())
    notes = []
    tied = [name for name, factor in factors.items() if factor.tied_to]
    if tied:
        notes.append(
            f"not told apart, fitted as one factor: {', '.join(tied)}; seconds of each stage would tell "
            f"them apart"
        )
    absent = [kind for kind in STAGE_KINDS if kind not in factors]
    if absent:
        notes.append(f"not measured, left as their sheets say: {', '.join(absent)}")
    return tuple(notes)
