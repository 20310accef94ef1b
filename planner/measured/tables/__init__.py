"""Readers of tables of steps that users write, one file per schema: `READER`; found by their file."""

from rlplan.planner.measured.rows import TableReader
from rlplan.plug_ins import PlugIns

READERS = PlugIns[TableReader](
    __name__, __path__, kind="table schema", attribute="READER", dashes=False
)
