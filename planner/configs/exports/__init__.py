"""One plug-in for each framework that plans are exported to: `text_of(export)`, once the plan's values are written."""

from types import ModuleType

from rlplan.plug_ins import PlugIns

EXPORTS = PlugIns[ModuleType](__name__, __path__, kind="framework that plans are exported to")
