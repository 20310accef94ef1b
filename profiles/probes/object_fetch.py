"""Fetch of an object that another worker put into the object store, as tasks fetch their inputs."""

from __future__ import annotations

from profiles.probes.actor_call import sizes_of
from profiles.probes.bench.contract import HostBench, HostProbe, Keys, Settings
from profiles.probes.bench.shapes import architectures
from rlplan.job import Job
from rlplan.probing import ModelPass


def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
    """Return fetches from 256 bytes to 16 MiB; none without a runner, whose workers fetch."""
    if job is None or not settings.passes:
        return []
    return [{"kind": "object_fetch", "num_bytes": size} for size in sizes_of(settings)]


def measure(bench: HostBench, keys: Keys, repeats: int) -> tuple[float, ...]:
    """Return the seconds of each fetch."""
    assert bench.runner is not None, "points are asked for a runner"
    assert bench.job is not None, "points are asked for a job"
    fetch = ModelPass(
        name="fetch",
        model=architectures(bench.job)[0],
        head="lm",
        precision=bench.settings.precision,
        tokens=int(keys["num_bytes"]),
    )
    return bench.runner.run(fetch, repeats)


PROBE = HostProbe(name="object_fetch", table="call", points=points, measure=measure)
