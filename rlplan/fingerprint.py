"""A machine's fingerprint: what is known of its hardware, system and Python, and when two are alike."""

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rlplan.files.frozen import FrozenDict
from rlplan.units import gib_from_bytes

# What decides how fast operations run. The rest of the fingerprint (kernel, Python) is for people:
# an update of the system does not turn the machine into another one.
HARDWARE_KEYS: Final = ("system", "cpu", "cores", "memory_bytes", "gpus")

_CPU_INFO = Path("/proc/cpuinfo")
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/gpus")


def read_fingerprint(gpus: Sequence[str] | None = None) -> FrozenDict[str, str]:
    """Return what is known of this machine: its hardware, system and Python, as text.

    Args:
        gpus: Names of its GPUs; None asks their driver.
    """
    return FrozenDict(
        {
            "system": platform.system(),
            "release": platform.release(),
            "cpu": _cpu_name(),
            "cores": str(usable_cores()),
            "memory_bytes": str(memory_bytes()),
            "gpus": ", ".join(_gpu_names() if gpus is None else gpus) or "none",
            "python": platform.python_version(),
        }
    )


def fingerprint_digest(fingerprint: Mapping[str, str]) -> str:
    """Return a short digest of the hardware; the same on every start of the same machine."""
    return hashlib.sha256(json.dumps(_hardware(fingerprint)).encode()).hexdigest()[:12]


def matches(first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    """Tell whether two fingerprints are of the same machine or of two that are built alike."""
    return _hardware(first) == _hardware(second)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Return the bytes of the host's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _hardware(fingerprint: Mapping[str, str]) -> dict[str, str]:
    hardware = {key: fingerprint.get(key, "") for key in HARDWARE_KEYS}
    if hardware["memory_bytes"].isdigit():
        # What the kernel keeps for itself differs by some MiB from start to start.
        hardware["memory_bytes"] = f"{gib_from_bytes(int(hardware['memory_bytes'])):.0f} GiB"
    return hardware


def _cpu_name() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", _text_of(_CPU_INFO), re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def _gpu_names() -> list[str]:
    """Return the names of the GPUs as the driver lists them, in bus order."""
    if not _NVIDIA_DRIVER.is_dir():
        return []
    cards = (_text_of(card / "information") for card in sorted(_NVIDIA_DRIVER.iterdir()))
    names = (re.search(r"^Model:\s*(.+)$", card, re.MULTILINE) for card in cards)
    return [name.group(1).strip() for name in names if name]


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
