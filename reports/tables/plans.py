"""Rows of every table, as text: the page, its Markdown version and the terminal share them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.models import ModelArchitecture
from rlplan.plan import Plan
from rlplan.reports.tables.wording import (
    interval,
    layout_words,
    model_of,
    percent,
    pool_words,
    signed_percent,
)
from rlplan.results.forecast import Forecast, MemoryForecast
from rlplan.results.measurement import Comparison, ComparisonRow, MeasuredRun
from rlplan.units import show_bytes, show_seconds


@dataclass(frozen=True, slots=True)
class Column:
    """Head a column; figures are aligned to the right."""

    title: str
    is_figure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Hold a table as text.

    Attributes:
        strong_rows: Indices of rows that stand out (a total, the chosen plan).
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    strong_rows: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), "one cell per column"


def columns(*titles: str) -> tuple[Column, ...]:
    """Return columns; a title that begins with `#` is one of figures."""
    return tuple(Column(title.removeprefix("#"), title.startswith("#")) for title in titles)


def split(table: Table, first: int) -> tuple[Table, Table]:
    """Return a table's first rows, and the others."""
    strong = frozenset(index - first for index in table.strong_rows if index >= first)
    return (
        Table(
            columns=table.columns,
            rows=table.rows[:first],
            strong_rows=frozenset(index for index in table.strong_rows if index < first),
        ),
        Table(columns=table.columns, rows=table.rows[first:], strong_rows=strong),
    )


def _without_bars(cell: str) -> str:
    return cell.replace("|", "\\|")


def markdown_lines(table: Table, escape: Callable[[str], str] = _without_bars) -> list[str]:
    """Return a table as lines of Markdown.

    Args:
        escape: Returns the Markdown of a cell's text.
    """

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    titles = [column.title for column in table.columns]
    rules = ["---:" if column.is_figure else "---" for column in table.columns]
    rows = [line(map(escape, row)) for row in (titles, *table.rows)]
    return [rows[0], line(rules), *rows[1:]]


def error_table(comparison: Comparison) -> Table:
    """Return forecast against measurement, task by task, the iteration last."""
    rows = [*comparison.rows, comparison.iteration]
    at_lengths = comparison.iteration.as_run_seconds is not None
    slowdown = comparison.machine_slowdown
    return Table(
        columns=columns(
            "Task", "Pool", "#Forecast", *(["#Forecast at its lengths"] if at_lengths else []), "#Measured median",
            "#Measured p10 to p90", "#Error", *(["#Error at its lengths"] if at_lengths else []),
            *(["#Error at its rate"] if slowdown is not None else []), "Source of the forecast",
        ),
        rows=tuple(_error_row(row, slowdown, at_lengths=at_lengths) for row in rows),
        strong_rows=frozenset({len(rows) - 1}),
    )  # fmt: skip


def _error_row(row: ComparisonRow, slowdown: float | None, *, at_lengths: bool) -> tuple[str, ...]:
    again = row.as_run_seconds
    return (
        row.name,
        row.pool,
        show_seconds(row.forecast_seconds),
        *(["" if again is None else show_seconds(again)] if at_lengths else []),
        show_seconds(row.measured_median_seconds),
        interval(row.measured_interval_seconds),
        signed_percent(row.error_fraction),
        *([_error_words(row.error_at())] if at_lengths else []),
        *([_error_words(row.error_at(slowdown))] if slowdown is not None else []),
        row.source,
    )


def _error_words(fraction: float | None) -> str:
    return "" if fraction is None else signed_percent(fraction)


def memory_table(forecast: Forecast, run: MeasuredRun | None = None) -> Table:
    """Return the peak of every pool's fullest GPU against its capacity, measured peaks beside it."""
    measured: Mapping[str, int] = run.memory_peak_bytes if run else {}
    titles = ["Pool", "#Forecast peak", "#Capacity", "#Filled", "Peak during"]
    if measured:
        titles.append("#Measured peak")
    rows = []
    for memory in forecast.memory:
        row = [
            memory.pool,
            show_bytes(memory.gpu_peak_bytes),
            show_bytes(memory.capacity_bytes),
            _filled(memory),
            memory.peak_task,
        ]
        if measured:
            peak = measured.get(memory.pool)
            row.append("not measured" if peak is None else show_bytes(peak))
        rows.append(tuple(row))
    return Table(columns=columns(*titles), rows=tuple(rows))


def _filled(memory: MemoryForecast) -> str:
    share = percent(memory.gpu_peak_bytes / memory.capacity_bytes)
    if memory.fits:
        return share
    return f"{share}, over by {show_bytes(memory.gpu_peak_bytes - memory.capacity_bytes)}"


def memory_terms_table(forecast: Forecast) -> Table:
    """Return what every pool's peak is made of, the largest term first."""
    return Table(
        columns=columns("Pool", "Term", "#Size", "#Share of the peak"),
        rows=tuple(
            (memory.pool, term, show_bytes(size), percent(size / max(memory.gpu_peak_bytes, 1)))
            for memory in forecast.memory
            for term, size in sorted(memory.terms.items(), key=lambda item: (-item[1], item[0]))
            if size
        ),
    )


def host_terms_table(forecast: Forecast) -> Table:
    """Return what lies in the host's memory for one GPU of every pool, beside a GPU's share of its node."""
    return Table(
        columns=columns("Pool", "Term", "#Size", "#Of a GPU's share"),
        rows=tuple(
            (memory.pool, term, show_bytes(size), _share_of_host(size, memory))
            for memory in forecast.memory
            for term, size in sorted(
                memory.host_terms.items(), key=lambda item: (-item[1], item[0])
            )
        ),
    )


def _share_of_host(size: int, memory: MemoryForecast) -> str:
    return percent(size / memory.host_capacity_bytes) if memory.host_capacity_bytes else ""


def layout_table(plan: Plan) -> Table:
    """Return every task's pool, model and layout in words, in the dataflow's order."""
    rows = []
    for task in tasks_of(load_algorithm(plan.job.algorithm), plan.job):
        layout = plan.tasks[task.name]
        model = model_of(plan.job, task.role) if task.has_model else task.kind
        rows.append((task.name, layout.pool, model, layout_words(layout, task.kind)))
    return Table(columns=columns("Task", "Pool", "Model", "How it runs"), rows=tuple(rows))


def pool_table(plan: Plan) -> Table:
    """Return what every pool is made of and who shares it, in which order."""
    return Table(
        columns=columns("Pool", "Made of", "Roles", "Order of its tasks"),
        rows=tuple(
            (
                pool.name,
                pool_words(pool),
                ", ".join(pool.roles),
                ", ".join(plan.order.get(pool.name, ())) or "as they become ready",
            )
            for pool in plan.pools
        ),
    )


def task_table(forecast: Forecast) -> Table:
    """Return every task's forecast with its interval and source, the iteration last."""
    rows = [
        (
            task.name,
            task.pool,
            task.stage,
            show_seconds(task.seconds),
            interval(task.interval_seconds),
            source_words(task.source, outside_range=task.outside_range),
        )
        for task in forecast.costs
    ]
    rows.append(
        (
            "iteration", "", "",
            show_seconds(forecast.iteration_seconds),
            interval(forecast.iteration_seconds_interval),
            "simulated",
        )
    )  # fmt: skip
    return Table(
        columns=columns("Task", "Pool", "Stage", "#Forecast", "#p10 to p90", "Source"),
        rows=tuple(rows),
        strong_rows=frozenset({len(rows) - 1}),
    )


def source_words(source: str, *, outside_range: bool) -> str:
    """Return a source, with a remark where a look-up left the measured range."""
    return f"{source}, outside the measured range" if outside_range else source


def parts_table(forecast: Forecast) -> Table:
    """Return the parts of every task's seconds, the largest first."""
    return Table(
        columns=columns("Task", "Part", "#Seconds", "#Share of the task"),
        rows=tuple(
            (task.name, part, show_seconds(seconds), percent(seconds / task.seconds))
            for task in forecast.costs
            if task.seconds > 0
            for part, seconds in sorted(task.parts.items(), key=lambda item: (-item[1], item[0]))
            if seconds
        ),
    )


def stage_table(forecast: Forecast) -> Table:
    """Return what every stage occupies of the iteration, and what pools stand idle for."""
    whole = forecast.iteration_seconds
    stages = [
        (f"Stage: {stage}", show_seconds(seconds), percent(seconds / whole))
        for stage, seconds in forecast.stage_seconds.items()
    ]
    idle = [
        (f"Idle, all pools: {cause}", show_seconds(seconds), "")
        for cause, seconds in forecast.idle_seconds.items()
    ]
    return Table(
        columns=columns("What", "#Seconds", "#Share of an iteration"), rows=tuple(stages + idle)
    )


def sources_table(plan: Plan, forecast: Forecast) -> Table:
    """Return where the numbers come from: the profile, the models' sheets and the forecast's sources."""
    rows = [("Profile", forecast.profile)]
    for name in dict.fromkeys(model_of(plan.job, role) for role in plan.job.models):
        model = next(
            (each for each in plan.job.models.values()
             if isinstance(each, ModelArchitecture) and each.name == name), None,
        )  # fmt: skip
        rows.append((f"Model {name}", (model.source if model else "") or "named by the job"))
    by_source: dict[str, list[str]] = {}
    for task in forecast.costs:
        words = source_words(task.source, outside_range=task.outside_range)
        by_source.setdefault(words, []).append(task.name)
    rows += [(f"Forecast: {source}", ", ".join(names)) for source, names in by_source.items()]
    return Table(columns=columns("What", "Where it comes from"), rows=tuple(rows))


def machine_table(run: MeasuredRun) -> Table:
    """Return the machine that ran the plan."""
    return Table(
        columns=columns("Machine", "Value"),
        rows=tuple((key, value) for key, value in run.machine.items()),
    )
