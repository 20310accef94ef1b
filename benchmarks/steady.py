"""Tell how fast this machine's cores are meanwhile, others of its host considered.

    python benchmarks/steady.py [SECONDS]

A core of a virtual machine may have to share one of the host's, for a moment or for minutes: it is then half as fast,
and no counter of stolen time says so. A small fixed work on each core ten times a second shows it, by the processor's
time that it takes (what waits for another task of this machine is none of it). Between a profile and a run the ratio of
its means is how many times as long the machine took for the same.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SAMPLE = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
parent = os.getppid()
while os.getppid() == parent:
    begin = time.thread_time()
    sum(number * number for number in range(20_000))
    print(time.monotonic(), time.thread_time() - begin, flush=True)
    time.sleep(0.1)
"""


@dataclass(slots=True)
class Watched:
    """Hold the fixed work's seconds on all cores, by when it ended, while something was measured."""

    samples: list[tuple[float, float]] = field(default_factory=list)

    def work_seconds(self, start_seconds: float = 0.0, end_seconds: float = float("inf")) -> float:
        """Return the mean of the fixed work's seconds between two moments of the monotonic clock."""
        return statistics.mean(
            seconds for at, seconds in self.samples if start_seconds <= at <= end_seconds
        )


@contextmanager
def watched() -> Iterator[Watched]:
    """Watch all cores; what is yielded is filled in at the end."""
    samplers = on_each_core(SAMPLE)
    found = Watched()
    try:
        yield found
    finally:
        for sampler in samplers:
            sampler.terminate()
            said, _ = sampler.communicate()
            for line in said.splitlines()[1:-1]:  # the first is cold, the last may be half of one
                at, seconds = map(float, line.split())
                found.samples.append((at, seconds))


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


def main() -> None:
    """Watch for some seconds, and print."""
    with watched() as found:
        time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
    each = sorted(seconds for _, seconds in found.samples)
    tenths = ", ".join(f"{each[len(each) * tenth // 10] * 1e3:.2f}" for tenth in range(10))
    print(f"mean {found.work_seconds() * 1e3:.2f} ms; by tenths {tenths}")


if __name__ == "__main__":
    main()
