"""Read what a site measured: runs of `rlplan execute`, and tables of published or own steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.answers.completion import load_plan
from planner.evaluation.reading import read_table
from profiles.facts import DATASHEET
from rlplan.errors import FileError, nearest_name
from rlplan.lengths import mean_length, with_mean
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import MeasuredRun
from rlplan.results.stored import FORECAST_FILE, PLAN_FILE, read_forecast, read_run
from simulator.calibration import Observation, observations_of, observations_of_run
from simulator.simulate import simulate

# Mean lengths that differ by less are of one workload: batches differ as much from iteration to iteration.
SAME_LENGTH_FRACTION = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Hold what a file or folder tells of a site, and what the forecasts beside it rest on."""

    observations: tuple[Observation, ...]
    rests_on: str


def measured_at(
    paths: Sequence[Path], *, profile: Path | None, device: str, group: str
) -> Measured:
    """Return what all sources tell of one site.

    Raises:
        FileError: As `measured_in`; or the forecasts beside them rest on different sheets or profiles.
    """
    found = [measured_in(path, profile=profile, device=device, group=group) for path in paths]
    for path, each in zip(paths, found, strict=True):
        if each.rests_on != found[0].rests_on:
            raise FileError(
                str(path),
                "has a forecast that rests on something else than that of the first source",
                field="profile",
                value=each.rests_on,
                allowed=found[0].rests_on,
            )
    observations = tuple(one for each in found for one in each.observations)
    return Measured(observations=observations, rests_on=found[0].rests_on)


def measured_in(path: Path, *, profile: Path | None, device: str, group: str) -> Measured:
    """Return what a run's folder, or a table of steps, tells of its site.

    Args:
        profile: Forecasts runs anew; without it, the forecast stored in a run's folder is taken.
        device: Device sheet of tables that do not name theirs.
        group: Framework and GPU whose rows of a table are taken; empty if it holds one such group.

    Raises:
        FileError: The path holds neither, or its rows are of several sites.
    """
    if path.is_dir():
        return measured_in_run(path, profile)
    return Measured(observations=measured_in_table(path, device, group), rests_on=DATASHEET)


def measured_in_run(folder: Path, profile: Path | None) -> Measured:
    """Return what a run's tasks took beside their forecast, at the lengths that the run had.

    Raises:
        FileError: The folder holds no finished run, or no forecast without a site's factors.
    """
    run, stored = read_run(folder), folder / FORECAST_FILE
    if profile is None and stored.exists() and _same_lengths(run):
        forecast = read_forecast(stored)
    else:
        forecast = _forecast_of(run, folder, profile)
    if forecast.site:
        raise FileError(
            str(stored),
            "has the factors of a site in it already",
            field="site",
            value=forecast.site,
            allowed="a run without --site, or --profile to forecast it anew",
        )
    return Measured(observations=observations_of_run(run, forecast), rests_on=forecast.profile)


def _same_lengths(run: MeasuredRun) -> bool:
    expected = mean_length(run.plan.job.workload.response_tokens)
    measured = run.response_tokens
    return measured is None or abs(measured - expected) <= SAME_LENGTH_FRACTION * expected


def _forecast_of(run: MeasuredRun, folder: Path, profile: Path | None) -> Forecast:
    """Return a new forecast of a run's plan, at the mean length of its responses."""
    plan, facts = load_plan(folder / PLAN_FILE, profile, misfits=True)
    if run.response_tokens is not None:
        workload = plan.job.workload
        lengths = with_mean(workload.response_tokens, run.response_tokens)
        job = replace(plan.job, workload=replace(workload, response_tokens=lengths))
        plan = replace(plan, job=job)
    return simulate(plan, facts)


def measured_in_table(path: Path, device: str, group: str) -> tuple[Observation, ...]:
    """Return what the rows of a table of steps tell of the one site that they are of.

    Raises:
        FileError: The table holds no steps with a forecast, or those of several frameworks and GPUs.
    """
    rows = [row for row in read_table(path, device=device) if row.predicted and row.group]
    groups = sorted({row.group for row in rows})
    if not groups:
        raise FileError(
            str(path), "holds no step that is forecast", allowed="a table of steps of a framework"
        )
    if group and group not in groups:
        raise _group_error(path, "holds no rows of this group", group, groups)
    if not group and len(groups) > 1:
        raise _group_error(path, "holds rows of several sites", None, groups)
    return tuple(
        each for row in rows if row.group == (group or groups[0]) for each in observations_of(row)
    )


def _group_error(path: Path, problem: str, found: str | None, groups: Sequence[str]) -> FileError:
    return FileError(
        str(path),
        problem,
        value=found,
        allowed=f"--group with one of: {'; '.join(groups)}",
        nearest=nearest_name(found or "", groups),
    )
