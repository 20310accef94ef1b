"""Calls of a storage actor that write rows, or read them, by their bytes: how streamed samples go between tasks."""

from __future__ import annotations

from profiles.probes.actor_call import sizes_of
from profiles.probes.bench.contract import HostBench, HostProbe, Keys, Settings
from profiles.probes.bench.shapes import architectures
from profiles.tables.points import QUEUE_CALL
from rlplan.job import Job
from rlplan.probing import ModelPass


def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
    """Return calls from 256 bytes to 16 MiB; none without a runner, who makes the calls."""
    if job is None or not settings.passes:
        return []
    return [{"kind": QUEUE_CALL, "num_bytes": size} for size in sizes_of(settings)]


def measure(bench: HostBench, keys: Keys, repeats: int) -> tuple[float, ...]:
    """Return the seconds of each call, of writes and of the reads that follow them the mean."""
    assert bench.runner is not None, "points are asked for a runner"
    assert bench.job is not None, "points are asked for a job"
    call = ModelPass(
        name="queue_call",
        model=architectures(bench.job)[0],
        head="lm",
        precision=bench.settings.precision,
        tokens=int(keys["num_bytes"]),
    )
    return bench.runner.run(call, repeats)


PROBE = HostProbe(name="queue_call", table="call", points=points, measure=measure)
