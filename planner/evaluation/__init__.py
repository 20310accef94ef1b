"""Forecasts against measurements that others published: one file per schema of a table.

A reader is a file of `tables/` whose `READER` knows a table by its columns, never by the file's
name, forecasts every row of it, and says of the rows that it cannot forecast why. The rows that the
project itself holds, each with its source, lie in `held/`.
"""

from planner.evaluation.findings import findings_of
from planner.evaluation.reading import about, held_tables, read_table, reader_names
from planner.evaluation.rows import Record, TableReader, forecast_row, skipped_row
from planner.evaluation.split import fitted_on, row_key
from planner.evaluation.summary import by_kind, summarise
from rlplan.results.accuracy import Row, Summary

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
