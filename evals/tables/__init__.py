"""Readers of published tables, one file per schema: `READER`; found by their file.

What several of them need stands in `rlplan.evals.settings`.
"""

from rlplan.planner.measured.rows import TableReader
from rlplan.plug_ins import PlugIns

READERS = PlugIns[TableReader](
    __name__, __path__, kind="table schema", attribute="READER", dashes=False
)
