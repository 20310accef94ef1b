"""Reward code: 1 where the response's program passes the row's `tests`, else 0.

The program is what stands in the response's last block of Python, or the whole response. It runs with the tests
behind it in a process of its own, in an empty folder, without the caller's environment variables, and is ended with
all that it started when its time is over. That keeps accidents in; it is no wall against a program that means harm:
where models may write such, run the pool in containers.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import Any

from rlplan.errors import FileError
from rlplan.executor.data.prompt_files import ORIGIN
from rlplan.units import GIB

# Columns of the data that it reads; a run without them is refused before it starts.
NEEDS = ("tests",)
BLOCK = re.compile(r"```(?:python|py)?\s*\n(.*?)(?:```|$)", re.DOTALL)
# Tests of a programming task run in well under a second; RollPacker's code rewards give up after 30 s.
LIMIT_SECONDS = 30.0
LIMIT_BYTES = GIB
# The program limits its own memory and the files that it writes before it runs what it is given.
START = (
    "import resource, sys;"
    f"resource.setrlimit(resource.RLIMIT_AS, ({LIMIT_BYTES}, {LIMIT_BYTES}));"
    f"resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT_BYTES}, {LIMIT_BYTES}));"
    "exec(compile(sys.stdin.read(), 'response', 'exec'), {'__name__': '__main__'})"
)


def RULE(prompt: str, response: str, row: dict[str, Any]) -> float:  # noqa: N802
    """Return 1 where the program passes the tests.

    Raises:
        FileError: The row has no tests.
    """
    tests = row.get("tests")
    if not isinstance(tests, str):
        origin = str(row.get(ORIGIN, f"prompt {prompt!r}"))
        problem = "is missing (the rule python_tests runs what a response has with them)"
        raise FileError(origin, problem, field="tests")
    blocks = BLOCK.findall(response)
    program = blocks[-1] if blocks else response
    return float(passes(f"{program}\n\n{tests}\n", LIMIT_SECONDS))


def passes(program: str, limit_seconds: float) -> bool:
    """Tell whether a program ends without an error within its time."""
    with TemporaryDirectory(prefix="rlplan-code-") as folder:
        process = subprocess.Popen(  # noqa: S603  # to run what a model wrote is what it is for
            [sys.executable, "-I", "-c", START],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            process.communicate(program.encode(errors="replace"), timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return process.returncode == 0
