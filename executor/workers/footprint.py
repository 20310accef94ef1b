"""Memory of this process: its peak, and what the garbage collector need not look at."""

import gc
import resource
import sys

from rlplan.units import KIB


def peak_bytes(device: str) -> int:
    """Return the peak of this process in bytes: allocated on `cuda`, else resident on the host."""
    if device == "cuda":
        import torch  # noqa: PLC0415  # rule workers do without

        return int(torch.cuda.max_memory_allocated())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes (getrusage(2)).
    return peak if sys.platform == "darwin" else peak * KIB


def freeze_collector() -> None:
    """Take all objects there are out of Python's garbage collection.

    Libraries and models stay for the life of a worker; walking over them would stop tasks for
    tenths of a second at moments that nobody chose.
    """
    gc.collect()
    gc.freeze()
