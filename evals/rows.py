"""Which rows of a published table constants are fitted on, and which are held back.

Constants are fitted on half of the rows, by a hash of what was measured: of the settings of a row, never
its measured value. So a row keeps its side whatever file it stands in, and fits and reports agree without
a list of rows.
"""

import zlib
from collections.abc import Sequence

from rlplan.planner.measured.rows import Record

NO_DEVICE = "the table does not name its device: give it with --device"


def row_key(record: Record, columns: Sequence[str]) -> str:
    """Return the text that identifies a record: its values in these columns."""
    return "|".join(record[column].strip() for column in columns)


def fitted_on(key: str) -> bool:
    """Tell whether the row of that key belongs to the half of rows that constants are fitted on."""
    return zlib.crc32(key.encode()) < 2**31
