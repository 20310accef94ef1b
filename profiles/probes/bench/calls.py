"""Probes of calls between processes, by the bytes that they pass: the executor makes them."""

from __future__ import annotations

from rlplan.job import Job
from rlplan.probing import ModelPass, PassName
from rlplan.profiles.probes.bench.contract import HostBench, HostProbe, Keys, Settings
from rlplan.profiles.probes.bench.shapes import architectures, geometric

_SMALLEST_BYTES, _LARGEST_BYTES = 2**8, 2**24


def call_probe(kind: str, pass_name: PassName) -> HostProbe:
    """Return the probe of a kind of call from 256 bytes to 16 MiB, as many sizes as a session has time for.

    Args:
        pass_name: What a runner knows it as.
    """

    def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
        if job is None or not settings.passes:  # without a runner nobody makes the calls
            return []
        sizes = geometric(_SMALLEST_BYTES, _LARGEST_BYTES, 4 * settings.step)
        return [{"kind": kind, "num_bytes": size} for size in sizes]

    def measure(bench: HostBench, keys: Keys, repeats: int) -> tuple[float, ...]:
        assert bench.runner is not None, "points are asked for a runner"
        assert bench.job is not None, "points are asked for a job"
        call = ModelPass(
            name=pass_name,
            model=architectures(bench.job)[0],
            head="lm",
            precision=bench.settings.precision,
            tokens=int(keys["num_bytes"]),
        )
        return bench.runner.run(call, repeats)

    return HostProbe(name=kind, table="call", points=points, measure=measure)
