"""Mistakes in data: what rows lack, and one of each kind where thousands of rows have the same."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlplan.errors import FileError, UserError, nearest_name
from rlplan.executor.data.prompt_files import ORIGIN, Row

# A mistake's figures (tokens, columns of a line) differ from row to row; the mistake is the same.
_FIGURES = re.compile(r"\d+")


class NeededColumns(NamedTuple):
    """Name the columns that every row must have beside its prompt: of those learnt from, and of those held out."""

    prompts: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()


NO_COLUMNS = NeededColumns()


def missing_columns(rows: Sequence[Row], columns: Sequence[str]) -> Iterator[FileError]:
    """Yield a mistake for each row without one of the columns."""
    for row in rows:
        for column in columns:
            if column not in row:
                known = [key for key in row if key != ORIGIN]
                problem = "is missing (the job's rule compares with it)"
                nearest = nearest_name(column, known)
                yield FileError(str(row[ORIGIN]), problem, field=column, nearest=nearest)


def one_of_each_kind(mistakes: Sequence[UserError]) -> list[UserError]:
    """Return the first mistake of each kind, which says how many there are of it.

    Mistakes of rows are alike where they are of one field and differ in figures only.
    """
    kinds: dict[tuple[str, str], list[UserError]] = {}
    for mistake in mistakes:
        kinds.setdefault(_kind(mistake), []).append(mistake)
    return [_of_all(alike) for alike in kinds.values()]


def _kind(mistake: UserError) -> tuple[str, str]:
    if not isinstance(mistake, FileError):
        return ("", str(mistake))
    return (mistake.field or "", _FIGURES.sub("0", mistake.problem))


def _of_all(alike: Sequence[UserError]) -> UserError:
    """Return the first of some mistakes, saying of how many rows it is one."""
    first = alike[0]
    if len(alike) == 1 or not isinstance(first, FileError):
        return first
    more = f"and {len(alike) - 1} more like it"
    return FileError(
        first.file,
        f"{first.problem} ({more})",
        field=first.field,
        value=first.value,
        allowed=first.allowed,
        nearest=first.nearest,
    )
