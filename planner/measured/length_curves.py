"""How long responses were over a run that was measured: a curve for the forecast of a whole one."""

import csv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from rlplan.errors import FileError
from rlplan.files.decoding import read_text
from rlplan.planner.measured.following import followed
from rlplan.planner.measured.logs import no_steps_error

# Columns of a table that is a curve.
STEP, TOKENS = "step", "response_tokens"
# Into which steps are put: mean lengths go up and down from step to step.
MOST_PARTS = 9

Point = tuple[float, float]


def length_curve(path: Path) -> tuple[Point, ...]:
    """Return the mean lengths of responses over a run, in tokens, as pairs of step and tokens, in order.

    Args:
        path: A CSV with the columns `step` and `response_tokens`, or a framework's log. Steps that follow one another are
            put together where there are many.

    Raises:
        FileError: The file cannot be read, or says no lengths.
    """
    points = _of_table(path) if path.suffix.lower() == ".csv" else None
    if points is None:
        points = _of_log(path)
    if not points:
        raise FileError(str(path), "says no lengths of responses", allowed=_ALLOWED)
    points.sort()
    parts = min(len(points), MOST_PARTS)
    ends = [len(points) * part // parts for part in range(parts + 1)]
    return tuple(_middle(points[begin:end]) for begin, end in pairwise(ends))


_ALLOWED = f"a CSV with the columns {STEP} and {TOKENS}, or a log that prints mean response lengths"


def _of_table(path: Path) -> list[Point] | None:
    """Return the points of a CSV; None where it has other columns.

    Raises:
        FileError: A row is no point, or a step is there twice.
    """
    # Spreadsheets put a byte order mark before the first column.
    lines = read_text(path).splitlines()
    rows = csv.DictReader(lines, skipinitialspace=True)
    found: dict[float, float] = {}
    try:
        if not {STEP, TOKENS} <= set(rows.fieldnames or ()):
            return None
        for row in rows:
            step = _number(path, rows.line_num, STEP, row[STEP])
            if step in found:
                field = f"line {rows.line_num}, {STEP}"
                raise FileError(str(path), "is there twice", field=field, value=row[STEP])
            found[step] = _number(path, rows.line_num, TOKENS, row[TOKENS])
    except csv.Error as error:
        raise FileError(str(path), f"is no table: {error}", allowed=_ALLOWED) from None
    return list(found.items())


def _number(path: Path, line: int, column: str, text: str | None) -> float:
    """Return a cell's number, from 1."""
    try:
        number = float(text or "")
    except ValueError:
        number = 0.0
    if not 1 <= number < float("inf"):
        field = f"line {line}, {column}"
        raise FileError(str(path), "is no number from 1", field=field, value=text or "nothing")
    return number


def _of_log(path: Path) -> list[Point]:
    """Return the points of a framework's log."""
    run = followed(path)
    if run is None:
        raise no_steps_error(path)
    key = run.sheet.response_tokens
    return [
        (number, step[key])
        for number, step in zip(run.numbers, run.steps, strict=True)
        if key and key in step
    ]


def _middle(part: Sequence[Point]) -> Point:
    steps, tokens = zip(*part, strict=True)
    return max(1.0, fmean(steps)), fmean(tokens)
