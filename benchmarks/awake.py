"""Keep cores awake while something is measured, as `cpupower frequency-set -g performance` would.

A core of a virtual machine that waits for some milliseconds is clocked down, and what it does next takes up to 1.7
times as long (`python benchmarks/awake.py` shows it). Where no governor can be set, a loop of idle priority on each
core stands in: the scheduler gives way to anything else at once.

Linux compares priorities inside a session alone where it groups tasks by sessions (`man 7 sched`, autogroup): a loop in
the session of this process would get as much of a core as a worker of Ray, whose servers lead sessions of their own,
and slow it down 1.4 times. So a loop leads a session too, one of the lowest weight (1.5 % of another's).
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AUTOGROUP = Path("/proc/self/autogroup")
SPIN = f"""
import os, sys
from pathlib import Path
group = Path("{AUTOGROUP}")
if group.exists():
    group.write_text("19")
os.sched_setaffinity(0, {{int(sys.argv[1])}})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""
NOTE = (
    "Cores were kept awake between calls by a loop of idle priority on each (`--awake`,"
    " `benchmarks/awake.py`): one that waits is clocked down on this host."
)
PAUSES_SECONDS = (0.0, 0.005, 0.02, 0.1)
SECONDS_EACH = 4.0


@contextmanager
def cores_awake(*, awake: bool = True) -> Iterator[None]:
    """Keep all cores of this process awake; do nothing where that is not asked for."""
    loops = on_each_core(SPIN) if awake else []
    try:
        yield
    finally:
        for loop in loops:
            loop.terminate()
        for loop in loops:
            loop.wait()


def on_each_core(script: str) -> list["subprocess.Popen[str]"]:
    """Start a script for each core of this process, whose number is its argument, in a session of its own."""
    return [
        subprocess.Popen(
            [sys.executable, "-c", script, str(core)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for core in os.sched_getaffinity(0)
    ]


def calls_seconds(pause_seconds: float) -> list[float]:
    """Return how long the same small work takes again and again, with pauses between."""
    found = []
    end = time.perf_counter() + SECONDS_EACH
    while time.perf_counter() < end:
        time.sleep(pause_seconds)
        start = time.perf_counter()
        sum(number * number for number in range(100_000))
        found.append(time.perf_counter() - start)
    return found


def main() -> None:
    """Show what pauses do to the work behind them, with cores awake and without."""
    for awake in (False, True):
        with cores_awake(awake=awake):
            for pause in PAUSES_SECONDS:
                median = statistics.median(calls_seconds(pause))
                print(
                    f"awake {awake!s:5}  pause {pause * 1e3:5.0f} ms  work {median * 1e3:5.1f} ms"
                )


if __name__ == "__main__":
    main()
