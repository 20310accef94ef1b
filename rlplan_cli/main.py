"""The process `rlplan`: from its command line to its exit code.

It imports next to nothing until signals are answered, so that Ctrl-C at any moment ends in one line.
"""

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from rlplan.errors import MissingValueError, MissingValuesError, RlplanError, cut, printable

# A list of all known names, and what may be said around it.
LONGEST_MESSAGE = 4000


def main() -> NoReturn:
    """Run the command line that this process was started with, and exit with its code."""
    signal.signal(signal.SIGTERM, _terminate)
    code = run(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # all is done; a second Ctrl-C has nothing to stop
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command line in this process and return its exit code.

    0 is success, 2 a mistake of the user (one line on stderr says which), 1 a failure of ours, and
    128 plus the signal's number an interruption.
    """
    try:
        from rlplan_cli.application import call

        return call(arguments)
    except KeyboardInterrupt as interrupt:
        _say("interrupted")
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
    except RlplanError as error:
        _say(f"{error}{_completed(error, arguments)}")
        return error.exit_code
    except BrokenPipeError:
        # Whoever read our output has what was wanted of it (`| head -1`): that is no failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        # A path that the user gave leads nowhere: too long a name, no permission, a full disk.
        _say(f"{error.filename}: {error.strerror}")
        return 2


def _completed(error: RlplanError, arguments: Sequence[str]) -> str:
    """Return the whole command line behind a refusal of values that it does not say; nothing behind another."""
    if not isinstance(error, MissingValueError | MissingValuesError) or not arguments:
        return ""
    first, *rest = arguments
    return f"; as in: {shlex.join(('rlplan', first, *error.options, *rest))}"


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    """Let SIGTERM unwind as Ctrl-C does, so that workers are stopped and files stay whole."""
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # `timeout` signals its child, then the child's group
    raise KeyboardInterrupt(number)


def _say(message: str) -> None:
    """Print a message as one line, whatever texts of users it holds."""
    line = printable(cut(" ".join(message.split()), LONGEST_MESSAGE))
    sys.stderr.write(f"rlplan: {line}\n")
