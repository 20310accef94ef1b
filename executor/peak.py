"""The largest memory that this process has held."""

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
