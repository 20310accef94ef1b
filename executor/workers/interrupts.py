"""Signals: SIGTERM unwinds as Ctrl-C does, and neither disturbs the clearing up."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Let SIGTERM unwind as Ctrl-C does, so that what was started is ended."""
    with _handled((signal.SIGTERM,), _interrupt):
        yield


@contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM for the seconds that clearing up takes."""
    with _handled((signal.SIGINT, signal.SIGTERM), signal.SIG_IGN):
        yield


@contextmanager
def _handled(
    numbers: tuple[signal.Signals, ...],
    handler: Callable[[int, FrameType | None], Any] | signal.Handlers,
) -> Iterator[None]:
    """Set a handler for a while; other threads than the main one may not, and get no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)


def _interrupt(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(number)
