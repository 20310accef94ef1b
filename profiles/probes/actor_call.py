"""Round trip of a remote call that does nothing, by the bytes that it passes, as the executor calls."""

from __future__ import annotations

from profiles.probes.bench.contract import HostBench, HostProbe, Keys, Settings
from profiles.probes.bench.shapes import architectures, geometric
from rlplan.job import Job
from rlplan.probing import ModelPass

_SMALLEST_BYTES, _LARGEST_BYTES = 2**8, 2**24


def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
    """Return calls from 256 bytes to 16 MiB; none without a runner, who makes the calls."""
    if job is None or not settings.passes:
        return []
    return [{"kind": "actor_call", "num_bytes": size} for size in sizes_of(settings)]


def sizes_of(settings: Settings) -> tuple[int, ...]:
    """Return payloads in bytes, as many as a session has time for."""
    return geometric(_SMALLEST_BYTES, _LARGEST_BYTES, 4 * settings.step)


def measure(bench: HostBench, keys: Keys, repeats: int) -> tuple[float, ...]:
    """Return the seconds of each call."""
    assert bench.runner is not None, "points are asked for a runner"
    assert bench.job is not None, "points are asked for a job"
    call = ModelPass(
        name="call",
        model=architectures(bench.job)[0],
        head="lm",
        precision=bench.settings.precision,
        tokens=int(keys["num_bytes"]),
    )
    return bench.runner.run(call, repeats)


PROBE = HostProbe(name="actor_call", table="call", points=points, measure=measure)
