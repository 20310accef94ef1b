"""What a reader makes of a table of measurements: rows, each forecast or skipped with a reason, and their errors summed up."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlplan.calibration import Calibration
from rlplan.errors import cut
from rlplan.estimate import P90_DEVIATIONS, Estimate, Source, interval_seconds
from rlplan.files.frozen import FrozenDict
from rlplan.results.accuracy import Cause, Errors, Row, StageSeconds, Summary, TableFindings
from rlplan.results.forecast import Forecast

Record = Mapping[str, str]

# The line of a table's first record, below the header.
FIRST_LINE = 2
# Above what any column holds: the floating-point operations of a GPU in a day are a tenth of it.
LARGEST_NUMBER = 10**21
# A tick of the fastest clock of a device is longer.
LEAST_SECONDS = 1e-12
LONGEST_CELL = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReader:
    """Know a table by its columns and forecast its rows; the schema's name is the reader's file.

    Attributes:
        about: What is measured and what the forecast takes as given, for people.
        columns: Those that every table of the schema has, among others.
        any_of: Columns of which it has one at least, if there are any.
        none_of: Columns of like tables, which it has not.
        rows_of: Yields the measurements of a record, each forecast or skipped. A cell that is no number
            where one is needed raises ValueError or KeyError, which `read_table` turns into a message
            with file, row and column.
        calibrated_rows_of: Yields the same measurements, in the same order, as they are forecast with a
            site's factors; None where rows do not calibrate each other. What `rows_of` yields is what
            it yields without any factors.
        merged: Joins the records of one measurement, such as the steps of a run, into one; None where each record is
            a measurement.
        is_known: Tells whether a record stands in a published table that the project fits on and does
            not hold; where it holds tables of the schema, these are looked into.
    """

    about: str
    columns: frozenset[str]
    any_of: frozenset[str] = frozenset()
    none_of: frozenset[str] = frozenset()
    rows_of: Callable[[Record], Iterable[Row]]
    calibrated_rows_of: Callable[[Record, Calibration], Iterable[Row]] | None = None
    merged: Callable[[Sequence[Record]], Sequence[Record]] | None = None
    is_known: Callable[[Record], bool] | None = None

    def matches(self, columns: frozenset[str]) -> bool:
        """Tell whether a table with these columns is of this schema."""
        some = not self.any_of or self.any_of & columns
        return self.columns <= columns and bool(some) and not self.none_of & columns

    def rows(self, records: Iterable[Record]) -> Iterator[Row]:
        """Yield the forecast of every measurement of a table, in the order of its records.

        Each record has, beside the table's own columns, `device`: the device sheet that the user
        named or that a folder of the table's path names (`a100`, `h100`); empty if neither does.
        """
        for index, record in enumerate(records):
            odd = self._odd_number(record)
            skipped = skipped_row(f"line {index + FIRST_LINE}", odd) if odd else None
            for row in (skipped,) if skipped is not None else self.rows_of(record):
                yield replace(_measurable(row), index=index)

    def _odd_number(self, record: Record) -> str:
        """Return what is wrong with a number that nothing can have measured or set; empty if all are sound.

        A forecast would play negative lengths without end, or batches of 10^30 prompts.
        """
        named = self.columns | self.any_of
        for column, cell in record.items():
            number = _number(cell)
            least = 0.0 if column in named else -float(LARGEST_NUMBER)
            if number is not None and not least <= number <= LARGEST_NUMBER:
                return f"{column} of {cut(cell, LONGEST_CELL)} is no number that can be forecast"
        return ""


def _measurable(row: Row) -> Row:
    """Return a row, left out where what was measured is nothing that can be, and an error has no meaning."""
    found = row.measured
    if row.skipped or found is None or LEAST_SECONDS <= found <= LARGEST_NUMBER:
        return row
    return skipped_row(row.label, f"{found} was never measured", kind=row.kind)


def _number(cell: str) -> float | None:
    """Return a cell's number; None where it is empty, words, or the `nan` of a value that is not there."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def estimate_of(forecast: Forecast) -> Estimate:
    """Return a forecast's iteration in seconds, its spread by its interval."""
    low, high = forecast.iteration_seconds_interval
    spread = (high - low) / 2 / P90_DEVIATIONS
    return Estimate(forecast.iteration_seconds, spread, Source.FITTED)


def forecast_row(
    label: str,
    measured_seconds: float,
    forecast: Estimate | Forecast,
    *,
    kind: str = "",
    fitted: bool = False,
    note: str = "",
    group: str = "",
    stages: FrozenDict[str, StageSeconds] = FrozenDict(),
) -> Row:
    """Return a row with a forecast, of an iteration or of what was measured, and the interval that its spread gives."""
    if isinstance(forecast, Forecast):
        forecast = estimate_of(forecast)
    return Row(
        label=label,
        kind=kind,
        measured_seconds=measured_seconds,
        forecast=forecast,
        fitted=fitted,
        note=note,
        group=group,
        stages=stages,
        interval_seconds=interval_seconds(forecast),
    )


def skipped_row(
    label: str, reason: str, *, kind: str = "", measured_seconds: float | None = None
) -> Row:
    """Return a row without a forecast, with the reason."""
    return Row(label=label, kind=kind, measured_seconds=measured_seconds, skipped=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCauses:
    """Hold what is known of the misses of one table.

    Attributes:
        miss_fraction: A row whose error is larger is a miss.
        note: What a reader must know of how rows were chosen before trusting the errors.
    """

    miss_fraction: float = 0.2
    causes: tuple[Cause, ...] = ()
    note: str = ""


NO_CAUSES = KnownCauses()


def summarise(rows: Sequence[Row], table: str = "") -> Summary:
    """Return the errors of rows; skipped rows are counted by reason.

    Args:
        table: Name of the summary; the rows' own if empty.
    """
    signed = [row.error_fraction for row in rows if row.error_fraction is not None]
    inside = [row.inside_interval for row in rows if row.inside_interval is not None]
    errors = errors_of(signed)
    return Summary(
        table=table or (rows[0].table if rows else ""),
        rows=errors.rows,
        skipped=sum(row.skipped is not None for row in rows),
        median_error=errors.median_error,
        mean_error=errors.mean_error,
        p90_error=errors.p90_error,
        worst_error=errors.worst_error,
        bias=float(np.mean(signed)) if signed else None,
        coverage=float(np.mean(inside)) if inside else None,
        fitted_rows=sum(row.fitted for row in rows if row.predicted is not None),
        unseen_rows=sum(row.unseen for row in rows if row.predicted is not None),
        after_calibration=errors_of([row.calibrated_error for row in rows]),
        stages=_stage_errors(rows),
        verdicts=sum(None not in (row.measured_fits, row.forecast_fits) for row in rows),
        wrong_verdicts=sum(row.wrong_verdict for row in rows),
        skipped_reasons=_counts([row.skipped or "" for row in rows]),
        notes=_counts([row.note for row in rows]),
    )


def errors_of(fractions: Iterable[float | None]) -> Errors:
    """Return errors, as fractions, summed up without their signs; None is left out."""
    absolute = np.abs([each for each in fractions if each is not None])
    if not len(absolute):
        return Errors()
    return Errors(
        rows=len(absolute),
        median_error=float(np.median(absolute)),
        mean_error=float(np.mean(absolute)),
        p90_error=float(np.quantile(absolute, 0.9)),
        worst_error=float(np.max(absolute)),
    )


def _stage_errors(rows: Sequence[Row]) -> FrozenDict[str, Errors]:
    """Return the errors by stage, in the order in which stages appear."""
    names = dict.fromkeys(name for row in rows for name in row.stages)
    found = {
        name: errors_of(row.stages[name].error_fraction for row in rows if name in row.stages)
        for name in names
    }
    return FrozenDict({name: errors for name, errors in found.items() if errors.rows})


def by_kind(rows: Sequence[Row]) -> list[Summary]:
    """Return one summary for each kind of measurement, in the order in which kinds appear."""
    kinds = dict.fromkeys(row.kind for row in rows)
    return [summarise([row for row in rows if row.kind == kind], kind) for kind in kinds]


def _counts(texts: Sequence[str]) -> FrozenDict[str, int]:
    return FrozenDict(Counter(text for text in texts if text))


def findings_of(
    table: str, rows: Sequence[Row], about: str, known: KnownCauses = NO_CAUSES
) -> TableFindings:
    """Return what is to be told of a table."""
    fitted = [row for row in rows if row.fitted]
    rest = [row for row in rows if not row.fitted]
    held = [row for row in rest if not row.unseen]
    unseen = [row for row in rest if row.unseen]
    return TableFindings(
        about=f"{about} {known.note}".strip(),
        rows=tuple(rows),
        whole=summarise(rows, table),
        fitted=summarise(fitted, f"{table}, fitted on"),
        held=summarise(held, f"{table}, held back"),
        unseen=summarise(unseen, f"{table}, unseen"),
        kinds=tuple(by_kind(rest)),
        miss_fraction=known.miss_fraction,
        causes=known.causes,
    )
