"""Tables for a terminal: figures are never folded, words break at spaces, columns make room.

Where a table is wider than the terminal, its text columns are narrowed as far as their longest
word; if that is not enough, the columns that the caller can spare are left out, the last first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlplan.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table as Grid

    from reports.tables.plans import Table

GAP = 2  # blanks between two columns


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
