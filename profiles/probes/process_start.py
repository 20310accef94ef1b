"""Start of a process that is ready to work, torch loaded: what a new worker costs at least."""

from __future__ import annotations

import time

from rlplan.job import Job
from rlplan.profiles.probes.bench.contract import HostBench, HostProbe, Keys, Settings
from rlplan.profiles.probes.bench.processes import fork_server


def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
    """Return the one point that there is."""
    del job, settings
    return [{"kind": "process_start", "num_bytes": 0}]


def measure(bench: HostBench, keys: Keys, repeats: int) -> tuple[float, ...]:
    """Return the seconds from the request to the first answer of a process, of each repeat."""
    del bench, keys
    return tuple(_start_one() for _ in range(repeats + 1))[1:]


def _start_one() -> float:
    context = fork_server()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=theirs.send, args=(b"",), daemon=True)
    start_seconds = time.perf_counter()
    process.start()
    try:
        theirs.close()
        ours.recv_bytes()
        return time.perf_counter() - start_seconds
    finally:
        ours.close()
        process.join()


PROBE = HostProbe(name="process_start", table="call", points=points, measure=measure)
