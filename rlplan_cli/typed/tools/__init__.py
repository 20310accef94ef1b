"""The tools of `rlplan mcp`: one file each, whose name is the tool's; nothing lists them by hand.

A file gives `Arguments` and `Answer` (dataclasses, whose schemas clients see), `call`, whose docstring is the tool's
description, `words`, which says an answer in a few lines, and `WRITES` where it writes a file.
"""

from rlplan.plug_ins import PlugIns
from rlplan_cli.typed.tool import ToolModule

TOOLS: PlugIns[ToolModule] = PlugIns(__name__, __path__, kind="tool")
