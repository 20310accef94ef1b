"""Leave no process behind: know the descendants of this process, and end those that stay."""

import os
import signal
import time
from pathlib import Path

PROC = Path("/proc")


def descendants() -> tuple[int, ...]:
    """Return the process ids of all descendants of this process; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        parent = _parent_of(int(folder.name))
        if parent is not None:
            children.setdefault(parent, []).append(int(folder.name))
    found, waiting = [], [os.getpid()]
    while waiting:
        born = children.get(waiting.pop(), [])
        found += born
        waiting += born
    return tuple(sorted(found))


def end_processes(pids: tuple[int, ...], patience_seconds: float = 3.0) -> None:
    """Wait for processes to end, and kill those that have not after a while."""
    deadline = time.monotonic() + patience_seconds
    while any(_is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in pids:
        if _is_alive(pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _parent_of(pid: int) -> int | None:
    fields = _stat_fields(pid)
    return int(fields[1]) if fields else None


def _is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and waits to be read by its parent does not."""
    fields = _stat_fields(pid)
    return bool(fields) and fields[0] != "Z"


def _stat_fields(pid: int) -> list[str]:
    """Return state, parent and the rest of /proc/<pid>/stat; the name before may hold spaces."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []
