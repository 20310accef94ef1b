"""Metrics of a run: a JSON line per iteration in `metrics.jsonl`, and TensorBoard scalars beside it."""

import logging
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rlplan.errors import FileError
from rlplan.executor.control.line_file import LineFile
from rlplan.executor.control.tracking import Tracking, time_of_day
from rlplan.executor.data.prompt_files import json_object
from rlplan.files.decoding import read_text

_log = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
# How often TensorBoard gets what has gathered. Some dozens of scalars take it tens of milliseconds,
# which on a small machine a worker would miss in every iteration.
BOARD_SECONDS = 10.0


class MetricsWriter:
    """Append the metrics of iterations to a run's folder; a context manager that closes itself.

    Args:
        out: Folder of the run; made if it is missing.
        tracking: What hands them to tracking services too; None: nothing does.
    """

    def __init__(self, out: Path, tracking: Tracking | None = None) -> None:
        self._tracking = tracking
        self._lines = LineFile(out / METRICS_FILE)
        self._board = _Board(out / TENSORBOARD_FOLDER)
        self._pending: list[tuple[int, dict[str, float]]] = []
        self._shown_seconds = time.monotonic()

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """Append one iteration; names such as `timing_s/actor.update` group the curves.

        A value that is not finite is stored as null and read back as NaN.

        Raises:
            FileError: The line cannot be written, or not as a whole.
        """
        numbers = {name: float(value) for name, value in values.items()}
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        self._lines.append({"iteration": iteration, **finite})
        self.show(iteration, numbers)

    def show(self, iteration: int, numbers: Mapping[str, float]) -> None:
        """Give curves a point that is no iteration's line."""
        if self._tracking is not None:
            self._tracking.add(iteration, numbers)
        self._pending.append((iteration, dict(numbers)))
        if time.monotonic() - self._shown_seconds > BOARD_SECONDS:
            self._show_pending()

    def _show_pending(self) -> None:
        """Hand what has gathered to TensorBoard."""
        self._board.show(self._pending)
        self._pending.clear()
        self._shown_seconds = time.monotonic()

    def close(self) -> None:
        """Close the files; closing twice does no harm."""
        if self._pending:
            self._show_pending()
        self._lines.close()
        self._board.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Board:
    """Write TensorBoard's events, as far as they can be written: a run goes on without its curves.

    Its own writer works in a thread of its own, whose failures nobody can answer.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records: Any = None
        self._failed = False
        self._attempt(self._open)

    def show(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Write the values of iterations."""
        if self._records is not None:
            self._attempt(lambda: self._write(rows))

    def close(self) -> None:
        """Close the file."""
        records, self._records = self._records, None
        if records is not None:
            records.close()  # unbuffered, so nothing is left that could fail

    def _open(self) -> None:
        # Loaded by who writes, not by who reads, for it takes a second.
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
        from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415

        self._event, self._summary = Event, Summary
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time_of_day():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter((self._folder / name).open("wb", buffering=0))
        # The first record of every file, as TensorBoard wants it.
        first = Event(wall_time=time_of_day(), file_version="brain.Event:2")
        self._records.write(first.SerializeToString())

    def _write(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        for iteration, numbers in rows:
            values = [
                self._summary.Value(tag=name, simple_value=value) for name, value in numbers.items()
            ]
            event = self._event(
                wall_time=time_of_day(), step=iteration, summary=self._summary(value=values)
            )
            self._records.write(event.SerializeToString())
        self._records.flush()

    def _attempt(self, action: Callable[[], object]) -> None:
        """Do something with the file; after a failure say so once and leave it."""
        if self._failed:
            return
        try:
            action()
        except OSError as error:
            self._failed = True
            self.close()
            _log.warning("%s: no more curves: %s", self._folder, error.strerror)


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
    found = []
    for number, line in enumerate(whole_lines, 1):
        origin = f"{file}: line {number}"
        values = json_object(line, origin)
        found.append({name: _number(value, name, origin) for name, value in values.items()})
    return found


def _number(value: object, name: str, origin: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FileError(origin, "is not a number", field=name, value=value)
    if abs(value) > sys.float_info.max:
        raise FileError(origin, "is larger than a number can be", field=name)
    return value
