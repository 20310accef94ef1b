"""A process that calls a job's reward function within limits of time and memory."""

import contextlib
import ctypes
import multiprocessing
import os
import resource
import select
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from rlplan.errors import RlplanError, UserError
from rlplan.executor.learning.reward_forms import Rule
from rlplan.executor.learning.rules import load_rule
from rlplan.executor.workers.processes.reaper import end_sessions

# What a call that was broken off is worth.
NOTHING = 0.0
START_SECONDS = 60.0
# Of linux/prctl.h.
PR_SET_PDEATHSIG = 1


class Limits(NamedTuple):
    """Limit a call.

    Attributes:
        seconds: Limit on its duration; None for no limit.
        num_bytes: Limit on the memory that it adds to its process; None for no limit.
    """

    seconds: float | None
    num_bytes: int | None

    @property
    def given(self) -> bool:
        """Tell whether there is a limit."""
        return self.seconds is not None or self.num_bytes is not None


class Sandbox:
    """Call a rule in a separate process, which is restarted after it was killed.

    Attributes:
        broken_off: Calls that took too long, too much memory, or ended their process; each is worth nothing.
    """

    def __init__(self, spec: str, folder: Path, limits: Limits) -> None:
        load_rule(spec, folder)  # raises here what is wrong with it
        self._given, self._limits = (spec, folder, limits.num_bytes), limits
        self.broken_off = 0
        self._process: Any = None
        self._start()

    def __call__(self, prompt: str, response: str, row: dict[str, Any]) -> float:
        """Return the rule's number, or 0 where the call was broken off.

        Raises:
            UserError: The rule fails, or returns no number.
        """
        self._connection.send((prompt, response, row))
        answer: Any = None
        with contextlib.suppress(EOFError, ConnectionError):
            if self._connection.poll(self._limits.seconds):
                answer = self._connection.recv()
        if isinstance(answer, float):
            return answer
        if isinstance(answer, str):
            raise UserError(answer)
        self.broken_off += 1
        if not isinstance(answer, MemoryError):
            self.stop()
            self._start()
        return NOTHING

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, *self._given), daemon=True)
        self._process.start()
        other.close()
        if not self._connection.poll(START_SECONDS):
            raise RlplanError(
                f"a process for reward functions did not start in {START_SECONDS:g} s"
            )
        self._connection.recv()

    def stop(self) -> None:
        """End the process, and what it started."""
        if self._process is None or self._process.pid is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._connection.close()


def _serve(connection: Connection, spec: str, folder: Path, limit_bytes: int | None) -> None:
    """Answer calls until nobody asks any more: with a number, a message, or that memory ran out."""
    os.setsid()  # what the rule starts can be ended with it
    _end_with_parent()
    _guard(connection)
    rule: Rule = load_rule(spec, folder)
    if limit_bytes is not None:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + limit_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    connection.send("ready")
    while True:
        try:
            call = connection.recv()
        except (EOFError, ConnectionError):
            return
        connection.send(_answer(rule, call))


def _end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, even in the middle of a call."""
    with contextlib.suppress(AttributeError, OSError):  # Linux alone has it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _guard(connection: Connection) -> None:
    """Start a guard process that kills this one's session, with all that the rule has started, when this one ends.

    The guard is not a child of this process, so that a rule that waits for its children does not wait for it.
    """
    if not hasattr(os, "pidfd_open"):  # Linux alone has it
        return
    process = os.getpid()
    ended = os.pidfd_open(process)
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        os.close(ended)
        return
    if os.fork():
        os._exit(0)
    os.setsid()
    connection.close()
    select.select([ended], [], [])
    end_sessions({process})
    os._exit(0)


def _answer(rule: Rule, call: tuple[str, str, dict[str, Any]]) -> float | str | MemoryError:
    try:
        return rule(*call)
    except UserError as error:
        if isinstance(error.__cause__, SystemExit):  # it wants its process to end, and has one
            raise error.__cause__ from None
        return MemoryError() if isinstance(error.__cause__, MemoryError) else str(error)
    except MemoryError:
        return MemoryError()
