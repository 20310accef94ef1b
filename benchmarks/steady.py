"""Tell how much of the time others of this machine's host took its cores, which the machine itself does not see.

    python benchmarks/steady.py [SECONDS]

A virtual machine's cores may share one of the host's for minutes: each is then half as fast, and no counter of stolen
time says so. A small fixed work on each core every second shows it, by the processor's time that it takes (what waits
for another task of this machine is none of it). What was measured while it took much longer is no measurement of what
runs there, whatever it says; it is measured again.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

Result = TypeVar("Result")

SAMPLE = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
parent = os.getppid()
while os.getppid() == parent:
    begin = time.thread_time()
    sum(number * number for number in range(100_000))
    print(time.thread_time() - begin, flush=True)
    time.sleep(1)
"""
# How many times as long the work takes where cores share one of the host's, with room for clocks that vary (1.1 to 1.3).
TAKEN = 1.4
# Most of the time that may have been taken of what counts.
MOST_SHARE = 0.1
TRIES = 3


@dataclass(slots=True)
class Watched:
    """Hold the seconds of the fixed work while something was measured.

    Attributes:
        share: Of the samples that took much longer than the fastest tenth of them on this machine so far.
    """

    share: float = 0.0
    seconds: list[float] = field(default_factory=list)


_fastest: list[float] = []


@contextmanager
def watched() -> Iterator[Watched]:
    """Watch all cores; what is yielded is filled in at the end."""
    cores = os.sched_getaffinity(0)
    samplers = [
        subprocess.Popen(
            [sys.executable, "-c", SAMPLE, str(core)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for core in cores
    ]
    found = Watched()
    try:
        yield found
    finally:
        for sampler in samplers:
            sampler.terminate()
            said, _ = sampler.communicate()
            found.seconds += map(float, said.splitlines()[:-1])  # the last line may be half of one
        if len(found.seconds) > 1:
            _fastest.append(statistics.quantiles(found.seconds, n=10)[0])
            limit = TAKEN * min(_fastest)
            found.share = sum(each > limit for each in found.seconds) / len(found.seconds)


def undisturbed(measure: Callable[[], Result]) -> tuple[Result, float]:
    """Return what is measured while cores are whole, or least disturbed of some tries, and the share that was taken."""
    tries: list[tuple[float, Result]] = []
    while not tries or (tries[-1][0] > MOST_SHARE and len(tries) < TRIES):
        with watched() as found:
            result = measure()
        tries.append((found.share, result))
    share, best = min(tries, key=lambda each: each[0])
    return best, share


def main() -> None:
    """Watch for some seconds, and print."""
    with watched() as found:
        time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
    shown = ", ".join(f"{each * 1e3:.1f}" for each in sorted(found.seconds))
    print(f"taken {found.share:.0%} of the time; milliseconds {shown}")


if __name__ == "__main__":
    main()
