"""Curves of a watched run in TensorBoard: measured, forecast and both ends of it as runs of one chart."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlplan.results.measurement import WatchedStep

STEP, STAGE = "rlplan/step_seconds", "rlplan/stage_seconds"


def require_tensorboard() -> None:
    """Say how to install what writes curves, if it is not there.

    Raises:
        UserError: tensorboard is missing.
    """
    from importlib.util import find_spec

    from rlplan.errors import UserError

    if find_spec("tensorboard") is None:
        raise UserError(
            "--tensorboard needs tensorboard; install it with: pip install 'rlplan[execute]'"
        )


class Curves:
    """Write watched steps into folders of their own, which TensorBoard lays over each other by tag."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records: dict[str, Any] = {}

    def show(self, found: WatchedStep) -> None:
        """Write a step.

        Raises:
            FileError: It cannot be written.
        """
        low, high = found.interval_seconds
        stages = found.stages
        curves: dict[str, dict[str, float]] = {
            "measured": {STEP: found.measured_seconds}
            | {f"{STAGE}/{each.name}": each.measured_seconds for each in stages},
            "forecast": {STEP: found.forecast_seconds}
            | {f"{STAGE}/{each.name}": each.forecast_seconds for each in stages},
            "forecast-p10": {STEP: low},
            "forecast-p90": {STEP: high},
        }
        from rlplan.errors import FileError

        try:
            for name, values in curves.items():
                self._write(name, found.step, values)
        except OSError as error:
            problem = f"cannot be written: {error.strerror or error}"
            raise FileError("--tensorboard", problem, value=str(self._folder)) from None

    def _write(self, name: str, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._event(name, step=step, summary=Summary(value=scalars))

    def _event(self, name: str, **held: Any) -> None:  # noqa: ANN401 -- fields of a message
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        now_seconds = time.clock_gettime(time.CLOCK_REALTIME)
        if name not in self._records:
            folder = self._folder / name
            folder.mkdir(parents=True, exist_ok=True)
            # Named as its own writer names files; the first record says the version, as TensorBoard wants it.
            file = f"events.out.tfevents.{now_seconds:.6f}.{socket.gethostname()}.{os.getpid()}"
            self._records[name] = RecordWriter((folder / file).open("wb", buffering=0))
            first = Event(wall_time=now_seconds, file_version="brain.Event:2")
            self._records[name].write(first.SerializeToString())
        event = Event(wall_time=now_seconds, **held)
        self._records[name].write(event.SerializeToString())

    def close(self) -> None:
        """Close the files."""
        for each in self._records.values():
            each.close()
        self._records.clear()
