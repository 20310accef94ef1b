"""A whole run in words and rows: how long, what it costs, and what of it goes where."""

from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import counted, interval, percent
from rlplan.results.forecast import CHECKPOINTS, VALIDATION, Forecast
from rlplan.results.renting import RentalLimits
from rlplan.results.run import FAILURES, SPOT, STEPS, RunForecast
from rlplan.units import (
    DAYS_FROM_HOURS,
    WHOLE_USD_FROM,
    hours_from_seconds,
    show_duration,
    show_seconds,
    show_usd,
    whole_usd,
)


def usd_interval(usd: tuple[float, float]) -> str:
    """Return an interval of money, such as `9,100 to 14,200 USD`."""
    low, high = usd
    if high < WHOLE_USD_FROM:
        return f"{show_usd(low)} to {show_usd(high)}"
    return f"{low:,.0f} to {high:,.0f} USD"


def duration_interval(seconds: tuple[float, float]) -> str:
    """Return an interval of durations, such as `6.4 to 10.2 h` or `3 d 1 h to 4 d 6 h`."""
    low, high = (hours_from_seconds(each) for each in seconds)
    if 1 <= high < DAYS_FROM_HOURS:
        return f"{low:.1f} to {high:.1f} h"
    return f"{show_duration(seconds[0])} to {show_duration(seconds[1])}"


def run_lines(run: RunForecast) -> tuple[str, ...]:
    """Return what a run takes, the answer first."""
    asked, within = counted(run.steps, "step"), duration_interval(run.interval_seconds)
    lines = [
        f"run:  {asked} in {show_duration(run.seconds)} (p10 to p90: {within})",
        f"      {whole_usd(run.usd)} (p10 to p90: {usd_interval(run.interval_usd)}) at {show_usd(run.usd_per_hour)} an hour",
    ]
    others = [part_words(run, name) for name in run.parts if name != STEPS]
    if others:
        lines.append(f"      beside its steps: {'; '.join(others)}")
    if len(run.points) > 1:
        first, last = run.points[0], run.points[-1]
        lines.append(
            f"      responses of {first.response_tokens:,.0f} tokens at first and {last.response_tokens:,.0f} at last; a step "
            f"takes {show_seconds(first.seconds)} at first and {show_seconds(last.seconds)} at last"
        )
    lines += [f"      {words}" for words in missing_words(run)]
    lines += [f"      does not fit {reason}" for reason in run.infeasible_reasons]
    return tuple(lines)


def score_lines(forecast: Forecast) -> tuple[str, ...]:
    """Return what it takes to get as far as fresh samples would, a step and the whole run; nothing where nobody asked."""
    progress = forecast.progress
    if progress is None:
        return ()
    each, within = show_seconds(progress.fresh_seconds), interval(progress.fresh_seconds_interval)
    low, high = progress.needed_interval
    lines = [
        (
            f"score: as far as a step on fresh samples in {each} (p10 to p90: {within}), assuming that it takes "
            f"{progress.needed_iterations:.2f} steps ({low:.2f} to {high:.2f}) on samples {progress.mean_age:.2f} steps old"
        )
    ]
    known = _run_seconds(forecast)
    if known is not None:
        steps, alone, within_alone = known
        seconds, both = progress.stretched(alone, within_alone)
        lines.append(
            f"       {counted(steps, 'fresh-equivalent step')} in {show_duration(seconds)} (p10 to p90: {duration_interval(both)})"
        )
    return tuple(lines)


def _run_seconds(forecast: Forecast) -> tuple[int, float, tuple[float, float]] | None:
    """Return a run's steps, seconds and their (p10, p90): of the run that was asked for, else of the job's; None without either."""
    run, beside = forecast.run, forecast.beside
    if run is not None:
        return run.steps, run.seconds, run.interval_seconds
    if beside is None or beside.run_seconds is None or beside.iterations is None:
        return None
    low, high = (
        beside.run_seconds * each / forecast.iteration_seconds
        for each in forecast.iteration_seconds_interval
    )
    return beside.iterations, beside.run_seconds, (low, high)


def limit_lines(run: RunForecast, limits: RentalLimits) -> tuple[str, ...]:
    """Return for each limit of a run whether its p90 keeps it."""
    lines = []
    if limits.budget_usd is not None:
        usd = run.interval_usd[1]
        word = "within" if usd <= limits.budget_usd else "over"
        lines.append(
            f"{word} the budget: {whole_usd(usd)} at p90 of {whole_usd(limits.budget_usd)}"
        )
    if limits.deadline_seconds is not None:
        seconds = run.interval_seconds[1]
        word = "in time" if seconds <= limits.deadline_seconds else "too late"
        lines.append(
            f"{word}: {show_duration(seconds)} at p90 of {show_duration(limits.deadline_seconds)}"
        )
    return tuple(f"      {line}" for line in lines)


def missing_words(run: RunForecast) -> tuple[str, ...]:
    """Return what of a run is not known and so not counted, and what else is to be known of it."""
    unknown = (f"{name} not counted: it is not known {what}" for name, what in run.unknown.items())
    return (*unknown, *run.notes)


def part_words(run: RunForecast, name: str) -> str:
    """Return one of the parts of a run, with how often it comes."""
    seconds = run.parts[name]
    shown = f"{show_duration(seconds)} ({percent(seconds / run.seconds)})"
    if name == VALIDATION:
        return f"{counted(run.validations, 'validation')}, {shown}"
    if name == CHECKPOINTS:
        return f"{counted(run.checkpoints, 'checkpoint')}, {shown}"
    if name == FAILURES:
        return f"{run.failures or 0.0:.1f} failures expected, with restarts and lost work {shown}"
    if name == SPOT:
        return f"generation that spot nodes lose, {shown}"
    return f"{name}, {shown}"


def run_table(run: RunForecast) -> Table:
    """Return a row for each step of a run at which its plan was simulated."""
    return Table(
        columns=columns("#Step", "#Response tokens", "#A step takes", "#p10 to p90"),
        rows=tuple(
            (
                f"{point.step:,}",
                f"{point.response_tokens:,.0f}",
                show_seconds(point.seconds),
                interval(point.interval_seconds),
            )
            for point in run.points
        ),
    )


def parts_table(run: RunForecast) -> Table:
    """Return what a run's time and money go into, the whole last."""
    rows = [
        (
            part_words(run, name).split(",")[0] if name != STEPS else counted(run.steps, "step"),
            show_duration(seconds),
            percent(seconds / run.seconds),
            whole_usd(run.usd * seconds / run.seconds),
        )
        for name, seconds in run.parts.items()
    ]
    whole = ("all", show_duration(run.seconds), percent(1.0), whole_usd(run.usd))
    return Table(
        columns=columns("What", "#Time", "#Share", "#Cost"),
        rows=(*rows, whole),
        strong_rows=frozenset({len(rows)}),
    )
