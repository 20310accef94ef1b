"""Rows of tables of pre-training iterations: settings of each measurement, forecast one by one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.evaluation.pretraining import Pretraining, iteration_seconds
from planner.evaluation.rows import Record, TableReader, forecast_row, skipped_row
from planner.evaluation.split import fitted_on, row_key
from rlplan.results.accuracy import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """Hold a published iteration.

    Attributes:
        run: Its settings; None where they are of a kind that is not forecast.
        reason: Why it is not forecast.
    """

    seconds: float
    kind: str
    fitted: bool = False
    run: Pretraining | None = None
    reason: str = ""
    label: str = ""
    note: str = ""


def training_rows(reader: TableReader, iterations: Iterable[Iteration]) -> Iterable[Row]:
    """Yield a forecast of every iteration, or the reason why there is none."""
    for index, each in enumerate(iterations):
        if each.run is None:
            yield skipped_row(
                reader,
                index,
                each.label,
                each.reason,
                kind=each.kind,
                measured_seconds=each.seconds,
            )
            continue
        yield forecast_row(
            reader, index, each.label or each.run.label, each.seconds, iteration_seconds(each.run),
            kind=each.kind, fitted=each.fitted, note=each.note,
        )  # fmt: skip


def is_fitted(record: Record, settings: Sequence[str]) -> bool:
    """Tell whether constants are fitted on the record with these settings."""
    return fitted_on(row_key(record, settings))
