"""Errors of a table's rows, summed up: of rows fitted on, held back and unseen, misses and their causes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rlplan.files.frozen import FrozenDict
from rlplan.results.accuracy import Cause, Errors, Row, Summary, TableFindings


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
