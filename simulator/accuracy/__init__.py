"""Forecasts against measurements that others published: one file per schema of a table.

A reader is a file of this folder whose `READER` knows a table by its columns, never by the file's
name, forecasts every row of it, and says of the rows that it cannot forecast why. The rows that the
project itself holds, each with its source, lie in `held/`.
"""

from simulator.accuracy.rows import Record, Row, TableReader, forecast_row, skipped_row
from simulator.accuracy.split import fitted_on, row_key
from simulator.accuracy.summary import Summary, summarise
from simulator.accuracy.tables import held_tables, read_table, reader_names

__all__ = [
    "Record",
    "Row",
    "Summary",
    "TableReader",
    "fitted_on",
    "forecast_row",
    "held_tables",
    "read_table",
    "reader_names",
    "row_key",
    "skipped_row",
    "summarise",
]
