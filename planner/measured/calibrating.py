"""Read what a site measured: runs of `rlplan execute`, tables of steps, and logs of frameworks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rlplan.calibration import LINKS, NO_CALIBRATION, STAGE_TASKS, Calibration, Factor
from rlplan.errors import FileError, nearest_name
from rlplan.estimate import Estimate
from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan
from rlplan.planner.answers.completion import load_plan
from rlplan.planner.measured.logs import read_log
from rlplan.planner.measured.measured_lengths import (
    at_lengths,
    forecast_as_run,
    in_iterations,
    own_steps,
    same_lengths,
)
from rlplan.planner.measured.reading import KnownTables, open_table, own_tables, row_at_site
from rlplan.planner.measured.trackers import tracked_files
from rlplan.profiles.facts import DATASHEET, Facts
from rlplan.results.accuracy import Row, StageSeconds
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import LoggedSteps, MeasuredRun
from rlplan.results.stored import FORECAST_FILE, PLAN_FILE, is_run, read_forecast, read_run
from rlplan.simulator.costs.taskcost import DRIVER, STATES_AWAY, STATES_BACK
from rlplan.simulator.observations import (
    Observation,
    observations_of,
    observations_of_run,
    path_seconds_of,
)
from rlplan.simulator.simulate import simulate

# By so much a link is slowed down to see which seconds are its own.
LINK_STEP = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Hold what a file or folder tells of a site, what the forecasts beside it rest on, and what ran."""

    observations: tuple[Observation, ...]
    rests_on: str
    framework: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationInputs:
    """Hold what a user says of files that do not say it themselves.

    Attributes:
        profile: Measured costs with which runs and logs are forecast; without it, the forecast stored in a
            run's folder is taken, and logs are forecast from data sheets.
        plan: What ran, for logs.
        device: Device sheet of tables that do not name theirs.
        group: Framework and GPU whose rows of a table are taken; empty if it holds one such group.
        tables: Returns those that can be read.
    """

    profile: Path | None = None
    plan: Path | None = None
    device: str = ""
    group: str = ""
    tables: Callable[[], KnownTables] = own_tables


def measured_at(paths: Sequence[Path], given: CalibrationInputs) -> Measured:
    """Return what all sources tell of one site.

    Raises:
        FileError: As `measured_in`; or the forecasts beside them rest on different sheets or profiles.
    """
    found = [measured_in(path, given) for path in paths]
    first = found[0]
    for path, each in zip(paths, found, strict=True):
        for name in ("rests_on", "framework"):
            own, expected = getattr(each, name), getattr(first, name)
            if own != expected:
                raise FileError(
                    str(path),
                    "has forecasts unlike those of the first source",
                    field=name,
                    value=own,
                    allowed=expected,
                )
    observations = tuple(one for each in found for one in each.observations)
    return replace(first, observations=observations)


def measured_in(path: Path, given: CalibrationInputs) -> Measured:
    """Return what a run's folder, a table of steps, or a framework's log tells of its site.

    Raises:
        FileError: The path holds none of them, or its rows are of several sites.
    """
    if is_run(path) or (path.is_dir() and not tracked_files(path)):
        return measured_in_run(path, given.profile)
    if path.suffix != ".csv" or given.plan is not None:
        return _measured_in_log(path, given)
    rows = _rows_of_table(path, given)
    observations = tuple(each for row in rows for each in observations_of(row))
    return Measured(observations=observations, rests_on=DATASHEET)


def measured_in_run(folder: Path, profile: Path | None) -> Measured:
    """Return what a run's tasks took beside their forecast, at the lengths that the run had.

    The plan is forecast anew where the stored forecast is of other lengths, or has a site's factors in it.

    Raises:
        FileError: The folder holds no finished run, or a profile is needed to forecast it anew.
    """
    run, stored = read_run(folder), folder / FORECAST_FILE
    forecast = read_forecast(stored) if profile is None and stored.exists() else None
    if forecast is not None and (forecast.site or not same_lengths(run)):
        if forecast.profile != DATASHEET:
            raise FileError(
                str(folder),
                "has to be forecast anew, at the lengths that it had and without a site's factors",
                field="profile",
                value=forecast.profile,
                allowed="with that --profile",
            )
        forecast = None
    forecast = forecast or _forecast_of(run, folder, profile)
    return Measured(
        observations=observations_of_run(run, forecast),
        rests_on=forecast.profile,
        framework=run.plan.job.framework,
    )


def _forecast_of(run: MeasuredRun, folder: Path, profile: Path | None) -> Forecast:
    """Return a new forecast of a run's plan, at the mean length of its responses."""
    plan, facts = load_plan(folder / PLAN_FILE, profile, misfits=True)
    return forecast_as_run(plan, facts, run)


def _rows_of_table(path: Path, given: CalibrationInputs) -> list[Row]:
    """Return the rows of a table of steps, all of one framework and GPU, with what links take of them."""
    table = open_table(path, given.tables(), given.device)
    found: dict[str, list[Row]] = {}
    places: dict[int, int] = {}
    for row in table.rows():
        place = places[row.index] = places.get(row.index, -1) + 1
        if row.group and row.error_fraction is not None:
            again = partial(row_at_site, table.reader, table.records[row.index], place)
            found.setdefault(row.group, []).append(_with_links(row, again))
    if not found:
        raise FileError(
            str(path), "holds no step that is forecast", allowed="a table of steps of a framework"
        )
    if given.group and given.group not in found:
        raise _group_error(path, "holds no rows of this group", given.group, sorted(found))
    if not given.group and len(found) > 1:
        raise _group_error(path, "holds rows of several sites", None, sorted(found))
    return found[given.group or next(iter(found))]


def _with_links(row: Row, at_site: Callable[[Calibration], Row]) -> Row:
    """Return a row whose stages say which of their seconds collectives on each kind of link take.

    Args:
        at_site: Forecasts the row with a site's factors.
    """
    linked: dict[str, dict[str, float]] = {name: {} for name in row.stages}
    for link in LINKS:
        slower = Factor(value=1 + LINK_STEP)
        stages = at_site(Calibration(links=FrozenDict({link: slower}))).stages
        for name, stage in row.stages.items():
            more = stages[name].forecast_seconds - stage.forecast_seconds
            linked[name][link] = max(0.0, more / LINK_STEP)
    return replace(
        row,
        stages=FrozenDict(
            {
                name: replace(stage, link_seconds=FrozenDict(linked[name]))
                for name, stage in row.stages.items()
            }
        ),
    )


def _measured_in_log(path: Path, given: CalibrationInputs) -> Measured:
    """Return what the steps of a log tell of its site.

    Raises:
        FileError: There is no plan, or the log holds no steps.
    """
    if given.plan is None:
        raise FileError(str(path), "is a log: its plan says what ran", allowed="with --plan")
    plan, facts = load_plan(given.plan, given.profile, misfits=True)
    work = plan.job.workload
    read = read_log(path, updates=work.updates * work.epochs)
    read, _ = in_iterations(read, plan)
    log, _ = own_steps(read, work.mean_observations_tokens)
    return measured_in_steps(
        path.name, log, at_lengths(plan, log.prompt_tokens, log.response_tokens), facts
    )


def measured_in_steps(label: str, log: LoggedSteps, plan: Plan, facts: Facts) -> Measured:
    """Return what the medians of some steps tell of their site.

    Args:
        plan: What ran, at the lengths of these steps.
    """

    def at_site(site: Calibration) -> Row:
        return row_of_log(label, log, plan, simulate(plan, facts.with_calibration(site)))

    row = _with_links(at_site(NO_CALIBRATION), at_site)
    return Measured(
        observations=observations_of(row), rests_on=facts.label, framework=plan.job.framework
    )


def row_of_log(label: str, log: LoggedSteps, plan: Plan, forecast: Forecast) -> Row:
    """Return the steps of a log beside the forecast of their plan, stage by stage."""
    apart = (DRIVER, STATES_BACK, STATES_AWAY) if log.sheet.states_in else (DRIVER,)
    seconds = {
        each.name: each.seconds - sum(each.parts.get(part, 0.0) for part in apart)
        for each in forecast.costs
    }
    if log.sheet.states_in:
        (task,) = STAGE_TASKS[log.sheet.states_in]
        copied = sum(each.parts.get(STATES_AWAY, 0.0) for each in forecast.costs)
        seconds[task] = seconds.get(task, 0.0) + copied
    held = {
        inner: outer
        for outer, inners in log.sheet.holds.items()
        for inner in inners
        if outer in log.stage_seconds and inner not in log.stage_seconds
    }
    stages: dict[str, StageSeconds] = {}
    whole = {name: () for name in log.sheet.holds if name not in STAGE_TASKS}
    for name, own in (STAGE_TASKS | whole).items():
        inner = [each for each, outer in held.items() if outer == name]
        within = {each: sum(seconds.get(task, 0.0) for task in STAGE_TASKS[each]) for each in inner}
        predicted = sum(seconds.get(task, 0.0) for task in own) + sum(within.values())
        waited = (
            plan.flow.overlaps and "actor.generate" in own
        )  # how long the trainer waited for it
        if predicted and name not in held and not waited:
            stages[name] = StageSeconds(
                measured_seconds=log.stage_seconds.get(name),
                forecast_seconds=predicted,
                inner_seconds=FrozenDict(within),
                engine=next((plan.tasks[task].engine for task in own if task in plan.tasks), ""),
            )
    return Row(
        label=label,
        measured_seconds=log.step_seconds,
        forecast=Estimate(forecast.iteration_seconds),
        stages=FrozenDict(stages),
        path_seconds=path_seconds_of(forecast) if plan.flow.overlaps else FrozenDict(),
    )


def _group_error(path: Path, problem: str, found: str | None, groups: Sequence[str]) -> FileError:
    return FileError(
        str(path),
        problem,
        value=found,
        allowed=f"--group with one of: {'; '.join(groups)}",
        nearest=nearest_name(found or "", groups),
    )
