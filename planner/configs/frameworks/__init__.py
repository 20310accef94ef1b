"""One plug-in for each framework whose configurations are read: `run_of(settings)`, and a sheet of its keys."""

from types import ModuleType

from rlplan.plug_ins import PlugIns

FRAMEWORKS = PlugIns[ModuleType](__name__, __path__, kind="framework of configurations")
