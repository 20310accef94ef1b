"""Keep cores awake while something is measured: idle ones poll in the kernel, and go into no deeper state.

A core of a virtual machine that waits for some milliseconds may be clocked down, or given to others, and what it does next
takes longer (`python benchmarks/awake.py` shows whether that is so here). The kernel takes a request against it: the
latency in microseconds that a waking core may have, for as long as its file is open (Linux, PM Quality Of Service, CPU latency
QoS; for root).

A loop of idle priority on each core is no substitute. The scheduler gives way to other tasks at once, but a core that
never idles does not pull what waits behind another core's task either. Steps of the controller of a run in mode `async`
took more than 10 ms, up to 40, 1.1 times an iteration beside loops, 0.25 times without them, 0.15 times with the request.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LATENCY_REQUEST = Path("/dev/cpu_dma_latency")
POLL = (0).to_bytes(4, sys.byteorder)  # a latency of 0 us, as a 32-bit integer
NOTE = "Idle cores polled (`--awake`, `benchmarks/awake.py`): one that waits may be clocked down."
PAUSES_SECONDS = (0.0, 0.005, 0.02, 0.1)
SECONDS_EACH = 4.0


@contextmanager
def cores_awake(*, awake: bool = True) -> Iterator[None]:
    """Keep all cores awake; do nothing where that is not asked for.

    Raises:
        SystemExit: The kernel does not take the request from this user.
    """
    if not awake:
        yield
        return
    try:
        request = LATENCY_REQUEST.open("wb", buffering=0)
    except OSError as error:
        sys.exit(f"--awake: {LATENCY_REQUEST} cannot be written: {error.strerror}")
    with request:
        request.write(POLL)
        yield


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
