"""What is known of the machine that runs a plan, as text."""

import os
import platform
import re
from pathlib import Path

from rlplan.files.frozen import FrozenDict

_CPU_INFO = Path("/proc/cpuinfo")


def machine_fingerprint(gpus: tuple[str, ...] = ()) -> FrozenDict[str, str]:
    """Return the machine's hardware, system and Python, under the keys that profiles use."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return FrozenDict(
        {
            "system": platform.system(),
            "release": platform.release(),
            "cpu": _cpu_name(),
            "cores": str(
                len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
            ),
            "memory_bytes": str(memory_bytes),
            "gpus": ", ".join(gpus) or "none",
            "python": platform.python_version(),
        }
    )


def _cpu_name() -> str:
    try:
        text = _CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()
