"""Metrics of a run: a JSON line per iteration in `metrics.jsonl`, and TensorBoard scalars beside it."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rlplan.errors import FileError
from rlplan.files.reading import read_text
from rlplan.files.writing import write_text

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
# How often TensorBoard gets what has gathered. Some dozens of scalars take it tens of milliseconds,
# which on a small machine a worker would miss in every iteration.
BOARD_SECONDS = 10.0


class MetricsWriter:
    """Append the metrics of iterations to a run's folder; a context manager that closes itself.

    A line that a killed run left half-written is removed before the first new one.

    Args:
        out: Folder of the run; made if it is missing.
    """

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._out = out
        self._board: Any = _board_in(out)
        self._pending: list[tuple[int, dict[str, float]]] = []
        self._shown_seconds = time.monotonic()
        path = out / METRICS_FILE
        _drop_cut_line(path)
        # Unbuffered: one write is one line, whole in the file when `write` returns.
        self._lines = path.open("ab", buffering=0)

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """Append one iteration; names such as `timing_s/actor.update` group the curves.

        A value that is not finite is stored as null and read back as NaN.
        """
        numbers = {name: float(value) for name, value in values.items()}
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        line = json.dumps({"iteration": iteration, **finite}, allow_nan=False)
        self._lines.write(line.encode() + b"\n")
        self._pending.append((iteration, numbers))
        if time.monotonic() - self._shown_seconds > BOARD_SECONDS:
            self._show_pending()

    def _show_pending(self) -> None:
        """Hand what has gathered to TensorBoard."""
        for iteration, numbers in self._pending:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, iteration)
        self._board.flush()
        self._pending.clear()
        self._shown_seconds = time.monotonic()

    def close(self) -> None:
        """Close the files; closing twice does no harm."""
        if self._pending:
            self._show_pending()
        self._lines.close()
        if self._board is not None:
            self._board.close()
            self._board = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _board_in(out: Path) -> Any:
    """Return TensorBoard's writer; loaded by who writes, not by who reads, for it takes a second."""
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

    return SummaryWriter(log_dir=str(out / TENSORBOARD_FOLDER))


def _drop_cut_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("r+b") as stream:
        content = stream.read()
        stream.truncate(content.rfind(b"\n") + 1)


def drop_iterations(path: Path, first: int) -> None:
    """Remove an iteration and all later ones from a `metrics.jsonl`, for they are done again."""
    if not path.exists():
        return
    _drop_cut_line(path)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    write_text(path, "".join(line for line in lines if json.loads(line)["iteration"] < first))


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return the metrics of each iteration, in the order written; null becomes NaN.

    Args:
        path: A `metrics.jsonl`, or the run's folder. A last line that was cut off is left out.

    Raises:
        FileError: The file is missing, or a line before the last is broken.
    """
    file = path / METRICS_FILE if path.is_dir() else path
    text = read_text(file, errors="replace")
    whole_lines = text.split("\n")[:-1]
    return [
        _read_line(line, f"{file}: line {number}") for number, line in enumerate(whole_lines, 1)
    ]


def _read_line(line: str, origin: str) -> dict[str, float]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FileError(origin, f"is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise FileError(origin, "is not an object", value=type(values).__name__, allowed="{...}")
    return {name: _number(value, name, origin) for name, value in values.items()}


def _number(value: object, name: str, origin: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FileError(origin, "is not a number", field=name, value=value)
    return value
