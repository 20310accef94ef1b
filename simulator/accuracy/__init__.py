"""Forecasts against measurements that others published: one file per schema of a table.

A reader is a file of this folder whose `READER` knows a table by its columns, never by the file's
name, forecasts every row of it, and says of the rows that it cannot forecast why. The rows that the
project itself holds, each with its source, lie in `held/`.
"""

from rlplan.accuracy import Row, Summary
from simulator.accuracy.findings import findings_of
from simulator.accuracy.rows import Record, TableReader, forecast_row, skipped_row
from simulator.accuracy.split import fitted_on, row_key
from simulator.accuracy.summary import by_kind, summarise
from simulator.accuracy.tables import about, held_tables, read_table, reader_names

__all__ = [
    "Record",
    "Row",
    "Summary",
    "TableReader",
    "about",
    "by_kind",
    "findings_of",
    "fitted_on",
    "forecast_row",
    "held_tables",
    "read_table",
    "reader_names",
    "row_key",
    "skipped_row",
    "summarise",
]
