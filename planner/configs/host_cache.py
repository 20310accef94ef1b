"""A KV cache that goes on in host memory, as a configuration says it by its engine's keys."""

from typing import Final

from rlplan.job import CacheOffload
from rlplan.planner.configs.reading.settings import Settings
from rlplan.units import GIB

# Settings of sheets, where a framework hands them on: what turns it on, and how much of it there is.
NAMES: Final = ("host_cache_on", "host_cache_gib", "host_cache_bytes", "host_cache_ratio", "host_cache_rank_gb", "host_cache_kind")  # fmt: skip
OWN_KINDS: Final = (None, "native", "OffloadingConnector")
NOT_READ: Final = "a KV cache that goes on in host memory, until the job has environments whose turns read it again"
OTHERS: Final = (
    "a KV cache that goes on in a store that engines share, or is handed from one to another"
)
GB: Final = 10**9


def offload_of(settings: Settings, ranks: int, *, plays: bool) -> CacheOffload | None:
    """Return how much host memory keeps of an engine's cache; None where none does, or none is read again.

    vLLM counts it for all ranks of an engine together (config/vllm.py, `cpu_bytes_to_use`), SGLang for each of them
    (mem_cache/memory_pool_host.py), where no size is said as so many times its cache.

    Args:
        ranks: GPUs of one replica of the engine.
        plays: Whether the job has environments.
    """
    given = {
        name: settings.value(name)
        for name in NAMES
        if name in settings.sheet.settings and settings.is_given(name)
    }
    is_own = given.get("host_cache_kind") in OWN_KINDS
    said = _said(settings, given, ranks) if is_own else None
    if said is not None and plays:
        return said
    for name in given if said is not None or not is_own else ():
        settings.left_out[settings.key_of(name)] = NOT_READ if is_own else OTHERS
    return None


def _said(settings: Settings, given: dict[str, object], ranks: int) -> CacheOffload | None:
    switch = "host_cache_on" in settings.sheet.settings and settings.on("host_cache_on")
    sizes = (
        ("host_cache_gib", GIB, True),
        ("host_cache_bytes", 1, True),
        ("host_cache_rank_gb", GB * ranks, switch),
    )
    for name, unit, counts in sizes:
        size = given.get(name)
        if counts and isinstance(size, int | float) and not isinstance(size, bool) and size > 0:
            return CacheOffload(replica_bytes=float(size) * unit)
    return CacheOffload(cache_ratio=settings.number("host_cache_ratio")) if switch else None
