"""Copies between host and device memory, and inside the device's; on CPU, from memory to memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rlplan.job import Job
from rlplan.profiles.probes.bench.contract import DeviceProbe, Keys, Settings
from rlplan.profiles.probes.bench.shapes import geometric

if TYPE_CHECKING:
    from rlplan.profiles.probes.bench.clock import TorchBench

_DIRECTIONS = ("host_to_device", "device_to_host", "device_to_device")
_SMALLEST_BYTES = 2**12


def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
    """Return sizes from 4 KiB up, the same for any job, since weights of any size are copied."""
    del job
    sizes = geometric(_SMALLEST_BYTES, settings.largest_bytes, 4 * settings.step)
    return [
        {"direction": direction, "num_bytes": size} for direction in _DIRECTIONS for size in sizes
    ]


def prepare(bench: TorchBench, keys: Keys) -> Callable[[], object]:
    """Return the copy; host memory is pinned for a GPU."""
    direction, num_bytes = str(keys["direction"]), int(keys["num_bytes"])
    source = bench.buffer(num_bytes, on_host=direction == "host_to_device")
    target = bench.buffer(num_bytes, on_host=direction == "device_to_host")
    return lambda: target.copy_(source, non_blocking=True)


PROBE = DeviceProbe(name="copy", table="copy", points=points, prepare=prepare)
