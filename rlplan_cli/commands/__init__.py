"""Commands, one file each: `command` with `EXAMPLE`, or a group `app`; the name is the file's name, with dashes."""

from typing import Any

from rlplan.plug_ins import PlugIns

COMMANDS = PlugIns[Any](__name__, __path__, kind="command")
