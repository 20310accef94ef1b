"""What commands share: results on stdout, progress on stderr, options that mean the same everywhere, how a plan is answered."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rlplan.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table as Grid

    from rlplan.plan import Plan
    from rlplan.planner.answers.run_limits import AskedRun
    from rlplan.profiles.facts import Facts
    from rlplan.reports.tables.plans import Table
    from rlplan.results.forecast import Forecast


GAP = 2  # blanks between two columns
LEAST_WORDS = 12  # characters of a line of words, before figures are broken too


@dataclass(frozen=True, slots=True, kw_only=True)
class GridColumn:
    """Hold one column as a terminal shows it.

    Attributes:
        least: The narrowest width in which nothing breaks inside a word or a figure.
        full: The width in which nothing breaks at all.
    """

    title: str
    is_figure: bool
    cells: tuple[str, ...]
    least: int
    full: int


def grid_of(table: Table, width: int, spare: Sequence[str] = ()) -> Grid:
    """Return a table as rich draws it, at most `width` characters wide if that is possible.

    Args:
        spare: Titles of columns that may be left out where the width is short, the last first.
    """
    from rich.table import Table as Grid
    from rich.text import Text

    columns = _fitting(table, width, spare)
    grid = Grid(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
    for column, size in zip(columns, _widths(columns, width), strict=True):
        justify: Literal["left", "right"] = "right" if column.is_figure else "left"
        grid.add_column(column.title, justify=justify, width=size, overflow="fold")
    for index in range(len(table.rows)):
        style = "bold" if index in table.strong_rows else None
        grid.add_row(*(Text(column.cells[index]) for column in columns), style=style)
    return grid


def _fitting(table: Table, width: int, spare: Sequence[str]) -> list[GridColumn]:
    columns = [
        _column(
            column.title, [printable(row[index]) for row in table.rows], is_figure=column.is_figure
        )
        for index, column in enumerate(table.columns)
    ]
    left = list(spare)
    while left and _total(column.least for column in columns) > width:
        dropped = left.pop()
        columns = [column for column in columns if column.title != dropped]
    return columns


def _column(title: str, cells: list[str], *, is_figure: bool) -> GridColumn:
    title_word = max(map(len, title.split()), default=0)
    full_cell = max(map(len, cells), default=0)
    cell_word = max((len(word) for cell in cells for word in cell.split()), default=0)
    least = max(title_word, full_cell if is_figure else cell_word)
    return GridColumn(
        title=title,
        is_figure=is_figure,
        cells=tuple(cells),
        least=least,
        full=max(len(title), full_cell),
    )


def _widths(columns: Sequence[GridColumn], width: int) -> list[int]:
    """Give every column what it needs, and share what is left among the words, by their lengths."""
    sizes = [column.least for column in columns]
    # Words are broken before figures are.
    words = [index for index, column in enumerate(columns) if not column.is_figure]
    while words and _total(sizes) > width and max(sizes[index] for index in words) > LEAST_WORDS:
        sizes[max(words, key=lambda index: sizes[index])] -= 1
    free = width - _total(sizes)
    while free > 0:
        short = [index for index, column in enumerate(columns) if sizes[index] < column.full]
        if not short:
            break
        # One blank at a time to the column that would break into the most lines.
        neediest = max(short, key=lambda index: (columns[index].full / sizes[index], -index))
        sizes[neediest] += 1
        free -= 1
    return sizes


def _total(widths: Iterable[int]) -> int:
    sizes = list(widths)
    return sum(sizes) + GAP * (len(sizes) - 1)


if TYPE_CHECKING:
    from rlplan.reports.tables.plans import Table

Progress = Callable[[int, int, str], None]

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
ReportOption = Annotated[
    Path | None,
    typer.Option(help="Write a page (HTML without any network, Markdown, SVG) into this folder."),
]
ProfileOption = Annotated[
    Path | None,
    typer.Option(
        help="Measured costs of the cluster's device (a folder made by `rlplan profile`); "
        "without it, costs come from the device's data sheet."
    ),
]

SiteOption = Annotated[
    Path | None,
    typer.Option(
        help="Factors of your site (a file made by `rlplan calibrate`) on what sheets or profile say."
    ),
]

AddressOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Join a Ray that is running: auto, or HOST:PORT; local starts one of the run's own.  "
        "[default: RAY_ADDRESS, else local]",
    ),
]

# Progress bars come for what takes longer than a person waits without asking.
QUIET_SECONDS = 2.0

# Characters of a line where stdout is no terminal.
WIDTH_OF_FILES = 120


def echo_json(value: object) -> None:
    """Print one of our types as JSON on stdout."""
    from rlplan.files.writing import to_json

    sys.stdout.write(to_json(value))


def say(message: str) -> None:
    """Print a line for people on stderr."""
    sys.stderr.write(printable(message) + "\n")
    sys.stderr.flush()


def say_written(*paths: Path | None) -> None:
    """Say on stderr which files were written; None is one that was not asked for."""
    for path in paths:
        if path is not None:
            say(f"written: {path}")


def print_table(title: str, table: Table, *, spare: Sequence[str] = ()) -> None:
    """Print a table of `reports` on stdout, figures right-aligned and outstanding rows bold.

    Args:
        spare: Titles of columns that stand below the others where the terminal is narrow, the last first.
    """
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_OF_FILES
    console.print(printable(title), style="bold italic", markup=False, soft_wrap=True)
    console.print(grid_of(table, console.width, spare))
    for block in left_out(table, console.width, spare):
        console.print()
        console.print(grid_of(block, console.width))
    console.print()


def left_out(table: Table, width: int, spare: Sequence[str]) -> list[Table]:
    """Return the columns that a width has no room for, behind the first one, as tables that fit it; none where all have room."""
    shown = {column.title for column in _fitting(table, width, spare)}
    blocks: list[list[int]] = []
    room = first = 0
    for at, column in enumerate(_fitting(table, width, ())):
        if column.title in shown:
            if at == 0:
                first = column.least
            continue
        needed = column.least + GAP
        if not blocks or needed > room:
            blocks.append([0])
            room = width - first
        blocks[-1].append(at)
        room -= needed
    return [_part(table, kept) for kept in blocks]


def _part(table: Table, kept: Sequence[int]) -> Table:
    """Return some columns of a table, without rows that have nothing in any but the first."""
    from dataclasses import replace

    told = [index for index, row in enumerate(table.rows) if any(row[at] for at in kept if at)]
    return replace(
        table,
        columns=tuple(table.columns[at] for at in kept),
        rows=tuple(tuple(table.rows[index][at] for at in kept) for index in told),
        strong_rows=frozenset(at for at, index in enumerate(told) if index in table.strong_rows),
    )


@contextmanager
def progress_bar(what: str, *, lines: bool = False) -> Iterator[Progress]:
    """Yield a callback (done, total, label) that draws a bar on stderr once two seconds have passed.

    Args:
        lines: Whether each label stays on stderr as a line of its own instead of beside the bar.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[label]}"),
    )
    console = Console(file=sys.stderr)
    bar = Bar(*columns, console=console, transient=True)
    task = bar.add_task(what, total=None, label="")
    started = time.monotonic()
    running = False

    def update(done: int, total: int, label: str) -> None:
        nonlocal running
        # Where stderr is no terminal there is nothing to draw on: a bar would leave an empty line.
        late = time.monotonic() - started > QUIET_SECONDS
        if late and not running and console.is_terminal:
            bar.start()
            running = True
        if lines:
            console.print(printable(label), markup=False, highlight=False, soft_wrap=True)
        bar.update(task, completed=done, total=total, label="" if lines else printable(label))

    try:
        yield update
    finally:
        if running:
            bar.stop()


def print_answer(
    plan: Plan,
    forecast: Forecast,
    facts: Facts,
    verdict: str | None = None,
    run: AskedRun | None = None,
) -> None:
    """Print on stdout whether a plan fits, what a step and its run take, and a row for each of its tasks.

    Args:
        verdict: Whether it fits, where more is known than the forecast.
        run: What was asked of the run that the forecast has.
    """
    from rlplan.reports.tables.plans import (
        SPARE_COLUMNS,
        answer_table,
        fit_words,
        step_lines,
        training_words,
    )
    from rlplan.simulator.timeline.expenses import mfu_fractions
    from rlplan.units import show_filled

    mfu = mfu_fractions(plan, forecast, facts)
    first = None
    if not forecast.feasible:  # what explains loads the search
        from rlplan.planner.answers.explain import first_shortage

        first = first_shortage(plan, facts)
    lines = [fit_words(forecast, verdict), *step_lines(plan, forecast, mfu)]
    if forecast.memory:
        from rlplan.simulator.placed import PlacedPlan
        from rlplan.simulator.timeline.pool_memory import fullest_training

        training = fullest_training(PlacedPlan(plan, facts))
        if training is not None and (words := training_words(forecast, training)):
            lines.insert(1, words)
    if first is not None and first.during not in {each.peak_task for each in forecast.memory}:
        filled = show_filled(first.needed_bytes, first.capacity_bytes)
        lines.insert(1, f"runs out first during {first.during} on pool {first.pool}: {filled}")
    if forecast.run is not None:
        from rlplan.reports.tables.run import limit_lines, run_lines

        lines += run_lines(forecast.run)
        lines += () if run is None else limit_lines(forecast.run, run.limits)
    if forecast.progress is not None:
        from rlplan.reports.tables.run import score_lines

        lines += score_lines(forecast)
    sys.stdout.write("\n".join(lines) + "\n\n")
    print_table("How each task runs", answer_table(plan, forecast, mfu), spare=SPARE_COLUMNS)
    if forecast.environments:
        from rlplan.reports.tables.environments import needs_table

        print_table("What environments need", needs_table(forecast.environments))


WhyOption = Annotated[
    bool, typer.Option("--why", help="Say all that was assumed, not the first three lines.")
]
# Lines of what was assumed, where `--why` does not ask for all.
MOST_ASSUMED = 3


def say_assumed(assumptions: Sequence[str], *, why: bool) -> None:
    """Say on stderr what was assumed, in a few lines unless all are asked for."""
    shown = (
        assumptions if why or len(assumptions) == MOST_ASSUMED + 1 else assumptions[:MOST_ASSUMED]
    )
    for assumption in shown:
        say(f"assumed: {assumption}")
    if left := len(assumptions) - len(shown):
        say(f"assumed: {left} more; --why says them")


def print_remarks(
    forecast: Forecast,
    verdict: str = "does not fit",
    also: Sequence[str] = (),
    *,
    why: bool = True,
) -> None:
    """Print on stderr what was assumed, where the forecast may be off, and why a plan does not fit.

    Args:
        verdict: What is said of a forecast that does not fit.
        also: What was assumed beside the forecast, which comes first.
        why: Whether all that was assumed is said.
    """
    from rlplan.reports.tables.plans import least_certain_words

    say_assumed((*also, *forecast.assumptions), why=why)
    for warning in (*forecast.warnings, least_certain_words(forecast)):
        if warning:
            say(f"may be off: {warning}")
    if forecast.environments:
        from rlplan.reports.tables.environments import needs_words

        for words in (
            words
            for each in forecast.environments
            for words in needs_words(each, reads_back=forecast.host_cache is not None)
        ):
            say(f"look at: {words}")
    if forecast.infeasible_reasons:
        _print_reasons(forecast, verdict)


def _print_reasons(forecast: Forecast, verdict: str) -> None:
    from rlplan.planner.answers.explain import NEAREST

    for reason in forecast.infeasible_reasons:
        nearest = reason.startswith(NEAREST)
        say(reason if nearest else f"{verdict}: {reason}")
