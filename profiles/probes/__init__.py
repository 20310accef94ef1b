"""Probes: what `rlplan profile` measures, one file each; a probe's name is its file's name.

Every plain module of this folder exposes a `PROBE`. The packages beside them are no probes:
`bench/` is what probes stand on (settings, shapes, processes, clocks), `session/` runs them all.
Torch is imported when a probe runs, in the processes that measure.
"""

from rlplan.plug_ins import PlugIns
from rlplan.profiles.probes.bench.contract import Probe

PROBES = PlugIns[Probe](__name__, __path__, kind="probe", attribute="PROBE", dashes=False)
probe_names, load_probe = PROBES.names, PROBES.load
