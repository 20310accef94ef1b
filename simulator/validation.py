"""Forecast against measurement, task by task, and the iteration."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import mean
from types import MappingProxyType

import numpy as np

from rlplan.errors import PlanError
from rlplan.estimate import Source
from rlplan.replicas import with_replicas
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import Comparison, ComparisonRow, MeasuredRun, ReplicaRow
from rlplan.trace import IterationSpan, Span
from rlplan.workload import mean_length

Row = tuple[str, str]
NOT_FORECAST = "not forecast"
ITERATION = "iteration"


def compare(forecast: Forecast, run: MeasuredRun, as_run: Forecast | None = None) -> Comparison:
    """Return errors of a forecast against the medians of a run's iterations after its warm-up.

    A task's row is what its workers take: a run's spans begin and end there. The call that brings them their inputs is
    part of a task's forecast and of the iteration, and lies between its spans.

    Rows follow the forecast. What was measured and not forecast has a row of its own at the end,
    with a forecast of 0 s and the source `not forecast`. A transition or transfer that was forecast
    and not measured as a span of its own (it is then part of a task's) has no row.

    Args:
        as_run: At the lengths that the run had; None where they are those of the forecast, or not known.

    Raises:
        PlanError: The run has no iteration after its warm-up, or not all tasks of the forecast.
    """
    iterations = [each for each in run.trace.iterations if each.iteration >= run.warmup_iterations]
    if not iterations:
        raise PlanError(
            f"run: {len(run.trace.iterations)} iterations, of which the first "
            f"{run.warmup_iterations} are warm-up: nothing is left to compare with"
        )
    measured = seconds_by_row(run, forecast, [each.iteration for each in iterations])
    _check_tasks(forecast, run)
    rows = [
        _row(
            task.name,
            task.pool,
            task.worker_seconds,
            measured.pop((task.name, task.pool)),
            task.source,
        )
        for task in {(task.name, task.pool): task for task in forecast.costs}.values()
        if (task.name, task.pool) in measured
    ]
    rows += [
        _row(name, pool, 0.0, seconds, NOT_FORECAST)
        for (name, pool), seconds in sorted(measured.items())
        if np.median(seconds) > 0
    ]
    whole = _row(
        ITERATION,
        "",
        forecast.iteration_seconds,
        [each.seconds for each in iterations],
        weakest_source(forecast),
    )
    expected: dict[Row, float] = {}
    if as_run is not None:
        expected = {(task.name, task.pool): task.worker_seconds for task in as_run.costs}
        expected[ITERATION, ""] = as_run.iteration_seconds
    rows = [
        replace(row, as_run_seconds=expected.get((row.name, row.pool))) for row in (*rows, whole)
    ]
    return Comparison(
        rows=tuple(rows[:-1]),
        iteration=rows[-1],
        warmup_iterations=run.warmup_iterations,
        compared_iterations=len(iterations),
        response_tokens=None
        if run.response_tokens is None or run.plan.job.workload.drops_responses
        else (mean_length(run.plan.job.workload.response_tokens), run.response_tokens),
        as_run_response_tokens=run.mean_response_tokens if as_run is not None else None,
        machine_slowdown=machine_slowdown(forecast, run),
    )


# Runs whose replicas come and go: iterations count where as many replicas generate as in the one before, so that none has
# joined, left or been lost in between.


def by_replicas(run: MeasuredRun) -> dict[int, list[IterationSpan]]:
    """Return the iterations of a run that count after its warm-up, by the number of replicas that generate."""
    found: dict[int, list[IterationSpan]] = {}
    before = [None, *run.replicas]
    for span, count, last in zip(run.trace.iterations, run.replicas, before, strict=False):
        if span.iteration >= run.warmup_iterations and count == last:
            found.setdefault(count, []).append(span)
    return found


def with_usual_replicas(run: MeasuredRun, among: Collection[int] = ()) -> MeasuredRun:
    """Return a run with those of its iterations alone that have the number of replicas which most of them have.

    Args:
        among: Numbers that are preferred, such as those that have a forecast.

    Raises:
        PlanError: There are no two iterations after the warm-up with as many replicas.
    """
    counted = by_replicas(run)
    if not counted:
        raise PlanError(
            "run: the number of replicas changes in every iteration after the warm-up: nothing is left to compare with"
        )
    usual = max(counted, key=lambda count: (count in among, len(counted[count]), count))
    trace = replace(run.trace, iterations=tuple(counted[usual]))
    own = replace(run, plan=with_replicas(run.plan, usual), trace=trace, replicas=())
    tokens = tokens_by_replicas(run).get(usual)  # those of all iterations may be others
    own = replace(own, replica_tokens=())
    return own if tokens is None else replace(own, response_tokens=tokens, response_lengths=None)


def tokens_by_replicas(run: MeasuredRun) -> dict[int, float]:
    """Return the mean response tokens of the iterations that count, by the number of replicas; nothing where it is not noted."""
    tokens = {
        span.iteration: each
        for span, each in zip(run.trace.iterations, run.replica_tokens, strict=False)
    }
    if not tokens:
        return {}
    return {
        count: mean(tokens[span.iteration] for span in spans)
        for count, spans in by_replicas(run).items()
    }


def replica_rows(
    run: MeasuredRun,
    forecasts: Mapping[int, Forecast],
    as_run: Mapping[int, Forecast] = MappingProxyType({}),
) -> tuple[ReplicaRow, ...]:
    """Return forecast against measurement by the number of replicas.

    Args:
        forecasts: By number of replicas, those of the run's that have one.
        as_run: The same at the lengths that these iterations had, where they are known.
    """
    rows, tokens = [], tokens_by_replicas(run)
    for count, spans in sorted(by_replicas(run).items()):
        if count not in forecasts:
            continue
        forecast = forecasts[count]
        row = _row(ITERATION, "", forecast.iteration_seconds, [each.seconds for each in spans], "")
        rows.append(
            ReplicaRow(
                replicas=count,
                iterations=len(spans),
                forecast_seconds=row.forecast_seconds,
                forecast_interval_seconds=forecast.iteration_seconds_interval,
                measured_median_seconds=row.measured_median_seconds,
                measured_interval_seconds=row.measured_interval_seconds,
                error_fraction=row.error_fraction,
                response_tokens=tokens.get(count),
                as_run_seconds=as_run[count].iteration_seconds if count in as_run else None,
                measured_seconds=sum(each.seconds for each in spans),
            )
        )
    return tuple(rows)


def machine_slowdown(forecast: Forecast, run: MeasuredRun) -> float | None:
    """Return how many times as long the machine took for the fixed loop during a run as for its profile.

    The mean of the run's start and end; None where profile or run did not note it.
    """
    if forecast.loop_flops_per_second is None or not run.loop_flops_per_second:
        return None
    return mean(forecast.loop_flops_per_second / each for each in run.loop_flops_per_second)


def seconds_by_row(
    run: MeasuredRun, forecast: Forecast, iterations: Sequence[int]
) -> dict[Row, list[float]]:
    """Return measured seconds by (name, pool), one for each of the iterations that has the row.

    A task that has several spans in an iteration takes their sum. A transition between pools has
    spans on both, one sending and one receiving: it lasts from the first start to the last end, and
    its row is the one that the forecast has.
    """
    homes = {task.name: task.pool for task in forecast.costs if task.activity == "transition"}
    found: dict[Row, dict[int, list[Span]]] = {}
    for span in run.trace.spans:
        if span.iteration in iterations:
            pool = span.pool
            if span.activity == "transition":
                pool = homes.setdefault(span.name, span.pool)
            found.setdefault((span.name, pool), {}).setdefault(span.iteration, []).append(span)
    return {row: [_length_seconds(spans) for spans in each.values()] for row, each in found.items()}


def _length_seconds(spans: Sequence[Span]) -> float:
    if spans[0].activity != "transition":
        return sum(span.seconds for span in spans)
    start_seconds = min(span.start_seconds for span in spans)
    return max(span.end_seconds for span in spans) - start_seconds


def weakest_source(forecast: Forecast) -> str:
    """Return the weakest source among a forecast's tasks and transitions."""
    ranks = {source.label: source for source in Source}
    return max((ranks[task.source] for task in forecast.costs), default=Source.MEASURED).label


def _check_tasks(forecast: Forecast, run: MeasuredRun) -> None:
    """Refuse a run that lacks a task; where responses are streamed, iterations after the warm-up alone may lack it."""
    wanted = [(task.name, task.pool) for task in forecast.costs if task.activity == "task"]
    measured = {(span.name, span.pool) for span in run.trace.spans}
    missing = [f"{name} on {pool}" for name, pool in wanted if (name, pool) not in measured]
    if missing:
        found = ", ".join(f"{name} on {pool}" for name, pool in sorted(measured))
        raise PlanError(
            f"run: no measurement of {', '.join(missing)}: it ran another plan than the one that "
            f"was forecast; measured: {found or 'nothing'}"
        )


def _row(
    name: str, pool: str, forecast_seconds: float, measured: Sequence[float], source: str
) -> ComparisonRow:
    p10, median, p90 = (float(each) for each in np.quantile(measured, (0.1, 0.5, 0.9)))
    # An empty span has no relative error; it counts as right if its forecast is 0.
    error = (forecast_seconds - median) / median if median else float(forecast_seconds > 0)
    return ComparisonRow(
        name=name,
        pool=pool,
        forecast_seconds=forecast_seconds,
        measured_median_seconds=median,
        measured_interval_seconds=(p10, p90),
        error_fraction=error,
        source=source,
    )
