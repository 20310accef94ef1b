"""What a KV cache that goes on in host memory does to a plan's generation, beside the same plan without."""

from dataclasses import replace

from rlplan.results.forecast import Forecast, HostCacheForecast
from rlplan.simulator.generation.generating import host_cache_bytes
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.timeline.pool_memory import kv_bytes_left
from rlplan.simulator.timeline.speculating import generation_seconds


def with_host_cache(forecast: Forecast, placed: PlacedPlan) -> Forecast:
    """Return a forecast with what keeping blocks in host memory does to its generation.

    Raises:
        MissingFactError: Neither profile nor device sheet can price something, or the engine keeps no blocks.
    """
    job, layout = placed.plan.job, placed.generate.layout
    without = PlacedPlan(replace(placed.plan, job=replace(job, kv_offload=None)), placed.facts)
    left = max(0.0, kv_bytes_left(placed))
    ranks = layout.tp * layout.pp
    return replace(
        forecast,
        host_cache=HostCacheForecast(
            replica_bytes=host_cache_bytes(placed.generate, left) * ranks,
            device_bytes=left * ranks,
            generation_seconds=generation_seconds(placed),
            without_seconds=generation_seconds(without),
        ),
    )
