"""Rules that a framework finds broken only at run time, one plug-in for each framework: `RULES`.

A rule reads settings and yields what breaks it; it says nothing where a value that it needs cannot be evaluated.
"""

from planner.configs.broken import Rule
from rlplan.plug_ins import PlugIns

RULES = PlugIns[tuple[Rule, ...]](
    __name__, __path__, kind="framework with rules", attribute="RULES"
)
