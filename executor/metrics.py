"""Metrics of a run: a JSON line per iteration in `metrics.jsonl`, and TensorBoard scalars beside it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rlplan.errors import FileError

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"


class MetricsWriter:
    """Append the metrics of iterations to a run's folder; a context manager that closes itself.

    A line that a killed run left half-written is removed before the first new one.

    Args:
        out: Folder of the run; made if it is missing.
    """

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._out = out
        self._board: Any = None
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
        board = self._tensorboard()
        for name, value in numbers.items():
            board.add_scalar(name, value, iteration)
        board.flush()

    def close(self) -> None:
        """Close the files; closing twice does no harm."""
        self._lines.close()
        if self._board is not None:
            self._board.close()
            self._board = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _tensorboard(self) -> Any:
        if self._board is None:
            # Loaded by who writes, not by who reads: it takes a second.
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

            self._board = SummaryWriter(log_dir=str(self._out / TENSORBOARD_FOLDER))
        return self._board


def _drop_cut_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("r+b") as stream:
        content = stream.read()
        stream.truncate(content.rfind(b"\n") + 1)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return the metrics of each iteration, in the order written; null becomes NaN.

    Args:
        path: A `metrics.jsonl`, or the run's folder. A last line that was cut off is left out.

    Raises:
        FileError: The file is missing, or a line before the last is broken.
    """
    file = path / METRICS_FILE if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise FileError(str(file), f"cannot be read: {error.strerror or error}") from None
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
