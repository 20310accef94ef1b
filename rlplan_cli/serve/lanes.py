"""Lanes of work: a process each, one request at a time, the newest of a page first in turn and the others dropped."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

Progress = Callable[[int, int, str], None]
FOLDER_PREFIX = "rlplan-lane-"


class Request(NamedTuple):
    """Hold what a lane is asked to do.

    Attributes:
        page: Which page asks; None for what belongs to no page.
        sequence: Rises from request to request of a page; an older one that waits is dropped.
    """

    work: str
    asked: Any
    page: str | None = None
    sequence: int = 0


class Dropped(Exception):  # noqa: N818 -- what becomes of a request, no mistake of anybody
    """Say that a newer request of the same page took the turn, or that the lane was stopped."""


class LaneFailedError(Exception):
    """Hold the traceback of a failure of our own in a lane's process, or that it ended by itself."""


class _Worker(NamedTuple):
    """Hold a lane's process, the connection to it, and the folder of its temporary files, which goes with it."""

    process: Any
    here: Connection
    folder: tempfile.TemporaryDirectory[str]

    def end(self) -> None:
        """End the process with what it does; what it had of files is removed."""
        self.process.kill()
        self.process.join()
        self.here.close()
        self.folder.cleanup()


class Lane:
    """Do work in a process of its own, which is started when it is first needed.

    Args:
        name: Of the process.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._turn = asyncio.Lock()
        self._newest: dict[tuple[str, str], int] = {}
        self._worker: _Worker | None = None
        self._guard = threading.Lock()
        self._running: tuple[Request, float] | None = None

    async def ask(self, request: Request, progress: Progress | None = None) -> object:
        """Return what the work answers: `Found`, or `Refused` with mistakes.

        Args:
            progress: Called from a thread with (done, total, what).

        Raises:
            Dropped: A newer request came, or the lane was stopped.
            LaneFailedError: It failed by a mistake of ours.
        """
        self.take_turn(request)
        async with self._turn:
            if self._is_stale(request):
                raise Dropped
            self._running = request, time.monotonic()
            talk = asyncio.ensure_future(asyncio.to_thread(self._talk, request, progress))
            try:
                return await asyncio.shield(talk)
            except asyncio.CancelledError:
                # Whoever asked has left: what is said meanwhile would be taken for the next answer.
                self.stop()
                with suppress(Dropped, LaneFailedError):
                    await talk
                raise
            finally:
                self._running = None

    def stop(self) -> None:
        """End the process with what it does; the next request starts another."""
        with self._guard:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()

    def take_turn(self, request: Request) -> None:
        """Note that a page has a newer question, whoever answers it: older ones that wait are dropped, and what takes long is ended.

        Raises:
            Dropped: A newer one came before.
        """
        if request.page is None:
            return
        key = (request.page, request.work)
        if request.sequence < self._newest.get(key, -1):
            raise Dropped
        self._newest.pop(key, None)
        self._newest[key] = request.sequence
        while len(self._newest) > MOST_PAGES:
            del self._newest[next(iter(self._newest))]
        self._end_stale(request)

    def _end_stale(self, request: Request) -> None:
        """End what is done for an older request of the same page, where it takes longer than another start would."""
        if self._running is None or request.page is None:
            return
        running, began = self._running
        same = (running.page, running.work) == (request.page, request.work)
        if same and time.monotonic() - began > LONGEST_STALE_SECONDS:
            self.stop()

    def _is_stale(self, request: Request) -> bool:
        if request.page is None:
            return False
        return self._newest.get((request.page, request.work), -1) > request.sequence

    def _talk(self, request: Request, progress: Progress | None) -> object:
        worker = self._started()
        here = worker.here
        try:
            here.send((request.work, request.asked))
            while True:
                kind, value = here.recv()
                if kind == "progress":
                    if progress is not None:
                        progress(*value)
                elif kind == "failed":
                    raise LaneFailedError(value)
                else:
                    return value
        except (OSError, EOFError, TypeError):
            # Stopped, or it died: a connection that is closed meanwhile has no handle.
            with self._guard:
                died = self._worker is worker
                self._worker = None if died else self._worker
            if not died:
                raise Dropped from None
            worker.end()
            raise LaneFailedError(f"process {worker.process.name} ended by itself\n") from None

    def _started(self) -> _Worker:
        with self._guard:
            if self._worker is None:
                context = get_context("spawn")
                here, there = context.Pipe()
                folder = tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX)
                process = context.Process(
                    target=work_through,
                    args=(there, folder.name),
                    name=f"rlplan-{self.name}",
                    daemon=True,
                )
                # Its start ends with Ctrl-C being let through, so it comes first.
                resource_tracker.ensure_running()
                # Ctrl-C reaches all processes of a terminal, this one while it still imports too.
                before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                try:
                    process.start()
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
                there.close()
                self._worker = _Worker(process, here, folder)
            return self._worker


# For which work goes on that nobody waits for any more: about what the start of another process takes.
LONGEST_STALE_SECONDS = 3.0
# Of pages, whose newest request is remembered.
MOST_PAGES = 256


def work_through(there: Connection, folder: str) -> None:
    """Answer requests until nobody is at the other end; Ctrl-C is for the process that started this one.

    Args:
        folder: Of temporary files: whoever ends this process removes them.
    """
    from rlplan.collecting import resting_collector
    from rlplan_cli.serve.work import done

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tempfile.tempdir = folder

    def progress(so_far: int, total: int, what: str) -> None:
        there.send(("progress", (so_far, total, what)))

    def answer(work: str, asked: object) -> object:
        with resting_collector():
            return done(work, asked, progress)

    with suppress(EOFError, OSError):
        while True:
            work, asked = there.recv()
            try:
                there.send(("done", answer(work, asked)))
            except Exception:  # noqa: BLE001 -- it is told on the other side, and the next request is answered
                there.send(("failed", traceback.format_exc()))
