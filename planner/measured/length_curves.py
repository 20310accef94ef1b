"""How long responses were over a run that was measured: a curve for the forecast of a whole one."""

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rlplan.errors import FileError
from rlplan.files.decoding import read_text
from rlplan.planner.measured.following import followed
from rlplan.planner.measured.logs import no_steps_error

# Columns of a table that is a curve.
STEP, TOKENS = "step", "response_tokens"
# Into which the steps of a log are put: mean lengths go up and down from step to step.
MOST_PARTS = 9

Point = tuple[float, float]


def length_curve(path: Path) -> tuple[Point, ...]:
    """Return the mean lengths of responses over a run, in tokens, as pairs of step and tokens, in order.

    Args:
        path: A CSV with the columns `step` and `response_tokens`, or a framework's log, of which steps are put together.

    Raises:
        FileError: The file cannot be read, or says no lengths.
    """
    points = _of_table(path) if path.suffix.lower() == ".csv" else None
    if points is None:
        points = _of_log(path)
    if not points:
        raise FileError(str(path), "says no lengths of responses", allowed=_ALLOWED)
    return tuple(sorted(points))


_ALLOWED = f"a CSV with the columns {STEP} and {TOKENS}, or a log that prints mean response lengths"


def _of_table(path: Path) -> list[Point] | None:
    """Return the points of a CSV; None where it has other columns."""
    rows = csv.DictReader(read_text(path).splitlines(), skipinitialspace=True)
    if not {STEP, TOKENS} <= set(rows.fieldnames or ()):
        return None
    return [
        (
            _number(path, rows.line_num, STEP, row[STEP]),
            _number(path, rows.line_num, TOKENS, row[TOKENS]),
        )
        for row in rows
    ]


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
    """Return the points of a framework's log, each the mean of steps that follow one another."""
    run = followed(path)
    if run is None:
        raise no_steps_error(path)
    key = run.sheet.response_tokens
    known = [
        (number, step[key])
        for number, step in zip(run.numbers, run.steps, strict=True)
        if key and key in step
    ]
    size = -(-len(known) // MOST_PARTS) or 1
    return [_middle(known[at : at + size]) for at in range(0, len(known), size)]


def _middle(part: Sequence[Point]) -> Point:
    steps, tokens = zip(*part, strict=True)
    return max(1.0, fmean(steps)), fmean(tokens)
