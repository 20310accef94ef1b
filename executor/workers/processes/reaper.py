"""Clean up after a process that was killed, by somebody or by Ray, which ends processes that lose its servers.

A child process in its own session waits for the end. It runs this file as a program, with the folder to remove as its
argument, and reads the sessions to end, one a line, or `DISMISSED` if there is nothing to do. It imports no package, so
that it starts quickly.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Self

DISMISSED = "dismissed"
MESSAGE = (
    "rlplan: the run ended at once: it was killed, or Ray ended it without its servers. What it left is cleared away;"
    " a run with checkpoints goes on with --resume"
)
# What is ended may write a last line of a log where the folder was.
AGAIN_SECONDS = 1.0


class Reaper:
    """Remove a folder and end sessions if this process is killed inside the context."""

    def __init__(self, folder: str) -> None:
        command = [sys.executable, "-I", "-S", str(Path(__file__)), folder]
        self._child = Popen(command, bufsize=0, stdin=PIPE, stdout=DEVNULL, start_new_session=True)  # noqa: S603 -- our own file
        self.pid = self._child.pid

    def __enter__(self) -> Self:
        """Return the reaper."""
        return self

    def __exit__(self, *_: object) -> None:
        """Dismiss it, however the context ends."""
        self.dismiss()

    def note(self, session: int) -> None:
        """Note a session that is to end with this process."""
        self._say(str(session))

    def dismiss(self) -> None:
        """Say that nothing is left to do, and wait until the child has ended."""
        self._say(DISMISSED)
        self._child.wait()

    def _say(self, line: str) -> None:
        assert self._child.stdin is not None
        with suppress(OSError):  # the child was killed too
            self._child.stdin.write(f"{line}\n".encode())


def main() -> None:
    """Wait for the end of the input; clear up unless it was said that there is no need to."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sessions = set[int]()
    for line in sys.stdin:
        if line.strip() == DISMISSED:
            return
        sessions.add(int(line))
    for _ in range(2):
        end_sessions(sessions)
        shutil.rmtree(sys.argv[1], ignore_errors=True)
        time.sleep(AGAIN_SECONDS)
    sys.stderr.write(MESSAGE + "\n")


def end_sessions(sessions: set[int]) -> None:
    """Kill all processes of sessions."""
    for process in _members(sessions):
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)


def _members(sessions: set[int]) -> Iterable[int]:
    """Yield the processes of sessions: all of them where /proc lists them, their leaders elsewhere."""
    listed = Path("/proc")
    numbers = [int(each.name) for each in listed.glob("[0-9]*")] or list(sessions)
    for number in numbers:
        with suppress(OSError):
            if os.getsid(number) in sessions:
                yield number


if __name__ == "__main__":
    main()
