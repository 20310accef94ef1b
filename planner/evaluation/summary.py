"""Errors of a table's rows, summed up."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from rlplan.files.frozen import FrozenDict
from rlplan.results.accuracy import Row, Summary


def summarise(rows: Sequence[Row], table: str = "") -> Summary:
    """Return the errors of rows; skipped rows are counted by reason.

    Args:
        table: Name of the summary; the rows' own if empty.
    """
    errors = np.array([row.error_fraction for row in rows if row.error_fraction is not None])
    inside = [row.inside_interval for row in rows if row.inside_interval is not None]
    absolute = np.abs(errors)
    known = len(errors) > 0
    return Summary(
        table=table or (rows[0].table if rows else ""),
        rows=len(errors),
        skipped=len(rows) - len(errors),
        median_error=float(np.median(absolute)) if known else None,
        mean_error=float(np.mean(absolute)) if known else None,
        p90_error=float(np.quantile(absolute, 0.9)) if known else None,
        worst_error=float(np.max(absolute)) if known else None,
        bias=float(np.mean(errors)) if known else None,
        coverage=float(np.mean(inside)) if inside else None,
        fitted_rows=sum(row.fitted for row in rows if row.forecast is not None),
        skipped_reasons=_counts([row.skipped or "" for row in rows]),
        notes=_counts([row.note for row in rows]),
    )


def by_kind(rows: Sequence[Row]) -> list[Summary]:
    """Return one summary for each kind of measurement, in the order in which kinds appear."""
    kinds = dict.fromkeys(row.kind for row in rows)
    return [summarise([row for row in rows if row.kind == kind], kind) for kind in kinds]


def _counts(texts: Sequence[str]) -> FrozenDict[str, int]:
    return FrozenDict(Counter(text for text in texts if text))
