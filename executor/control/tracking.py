"""Metrics on their way to tracking services: every service has a thread of its own, for which no iteration waits."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlplan.errors import RlplanError, UserError
from rlplan.executor.control.services import (
    CLOSE_SECONDS,
    SERVICES,
    Service,
    TrackedRow,
    TrackedRun,
)
from rlplan.files.decoding import read_json
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import plain, write_json
from rlplan.plan import Plan

_log = logging.getLogger(__name__)

TRACKING_FILE = "tracking.json"
# How often a service gets what has gathered.
HAND_OVER_SECONDS = 10.0
# What it gets at the end of a run that is interrupted, and that people wait to see ended.
INTERRUPTED_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRuns:
    """Hold the run of each service that a run logs to, by the service's name."""

    version: int = 1
    run_ids: FrozenDict[str, str]


class Tracking:
    """Hand a run's metrics to services; one that fails is left, and the run goes on."""

    def __init__(self) -> None:
        self._threads: list[_HandOver] = []

    def begin(self, name: str, service: Service) -> None:
        """Hand what comes from now on to a service too."""
        self._threads.append(_HandOver(name, service))

    def add(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Take an iteration's metrics; this takes no time."""
        if self._threads:
            row = TrackedRow(iteration=iteration, time_seconds=time_of_day(), metrics=dict(metrics))
            for each in self._threads:
                each.add(row)

    def close(self, *, failed: bool, limit_seconds: float) -> None:
        """Hand over what is left, and end the services' runs.

        Args:
            failed: Whether the run ended before its time.
            limit_seconds: What all of them may take together.
        """
        deadline = time.monotonic() + limit_seconds
        for each in self._threads:
            each.end(failed=failed)
        for each in self._threads:
            each.wait(max(0.0, deadline - time.monotonic()))


class _HandOver:
    """Hand rows to a service in a thread."""

    def __init__(self, name: str, service: Service) -> None:
        self._name, self._service = name, service
        self._rows: list[TrackedRow] = []
        self._ends, self._failed, self._is_lost = threading.Event(), False, False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=f"log to {name}", daemon=True)
        self._thread.start()

    def add(self, row: TrackedRow) -> None:
        with self._lock:
            if not self._is_lost:
                self._rows.append(row)

    def end(self, *, failed: bool) -> None:
        self._failed = failed
        self._ends.set()

    def wait(self, limit_seconds: float) -> None:
        self._thread.join(limit_seconds)
        if self._thread.is_alive():
            _log.warning("%s: did not take all metrics in time", self._name)

    def _work(self) -> None:
        try:
            while not self._ends.wait(HAND_OVER_SECONDS):
                self._hand_over()
            self._hand_over()
            self._service.close(failed=self._failed)
        except Exception as error:  # noqa: BLE001  # of whatever kind: the run goes on without it
            with self._lock:
                self._is_lost = True
                self._rows.clear()
            _log.warning("%s: no more metrics: %s", self._name, _in_a_line(error))

    def _hand_over(self) -> None:
        with self._lock:
            rows, self._rows = self._rows, []
        if rows:
            self._service.log(rows)


@contextmanager
def tracked(
    names: Sequence[str],
    out: Path,
    plan: Plan,
    *,
    goes_on: bool,
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[Tracking]:
    """Start runs of services and yield what hands metrics to them; end them with the block.

    Args:
        names: Of files in `rlplan.executor.control.services`, whose packages are installed.
        out: The run's folder; a file in it keeps which runs of the services are this run's.
        goes_on: Whether the run goes on in its folder, and so in its runs of the services.
        tell: Takes where a service's run is found.

    Raises:
        UserError: A service cannot be started, or no longer has the run that is gone on with.
        FileError: The file cannot be read or written.
    """
    file, tracking = out / TRACKING_FILE, Tracking()
    run_ids: dict[str, str] = {}
    if goes_on and file.exists():
        run_ids |= read_json(TrackedRuns, file).run_ids
    elif not goes_on:
        file.unlink(missing_ok=True)
    try:
        for name in dict.fromkeys(names):
            service = _started(name, out, plan, run_ids.get(name))
            tracking.begin(name, service)
            run_ids[name] = service.run_id
            write_json(file, TrackedRuns(run_ids=FrozenDict(run_ids)))
            tell(f"{name}: {service.where}")
        yield tracking
    except BaseException as error:
        limit_seconds = CLOSE_SECONDS if isinstance(error, Exception) else INTERRUPTED_SECONDS
        tracking.close(failed=True, limit_seconds=limit_seconds)
        raise
    tracking.close(failed=False, limit_seconds=CLOSE_SECONDS)


def _started(name: str, out: Path, plan: Plan, run_id: str | None) -> Service:
    """Return a service's run that was started, or gone on with."""
    out.mkdir(parents=True, exist_ok=True)
    configuration = plain(plan)
    run = TrackedRun(
        name=out.resolve().name,
        folder=out.resolve(),
        configuration={"job": configuration.pop("job"), "plan": configuration},
        run_id=run_id,
    )
    try:
        service: Service = SERVICES.load(name).start(run)
    except RlplanError:
        raise
    except Exception as error:
        gone_on = "" if run_id is None else f" with run {run_id}, which {out / TRACKING_FILE} names"
        raise UserError(
            f"--log-to {name}: cannot be started{gone_on}: {_in_a_line(error)}"
        ) from error
    return service


def _in_a_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def time_of_day() -> float:
    """Return the time that curves and services show, in seconds since 1970."""
    return time.time()  # noqa: TID251  # a date is wanted
