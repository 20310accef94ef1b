"""Probes: what `rlplan profile` measures, one file each; a probe's name is its file's name.

Every plain module of this folder exposes a `PROBE`. The packages beside them are no probes:
`bench/` is what probes stand on (settings, shapes, processes, clocks), `session/` runs them all.
Torch is imported when a probe runs, in the processes that measure.
"""

import importlib
import pkgutil

from profiles.probes.bench.contract import Probe
from rlplan.errors import UnknownNameError


def probe_names() -> tuple[str, ...]:
    """Return the names of all probes, sorted."""
    found = pkgutil.iter_modules(__path__)
    return tuple(sorted(module.name for module in found if not module.ispkg))


def load_probe(name: str) -> Probe:
    """Return the probe of that name.

    Raises:
        UnknownNameError: No file of that name exists.
    """
    if name not in probe_names():
        raise UnknownNameError("probe", name, probe_names())
    probe: Probe = importlib.import_module(f"{__name__}.{name}").PROBE
    return probe
