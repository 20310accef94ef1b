"""Published steps of RL frameworks: a table that users write of their own steps, and of which some rows are fitted on."""

from collections.abc import Iterator
from dataclasses import replace

from rlplan.calibration import NO_CALIBRATION, Calibration
from rlplan.planner.measured.rows import Record
from rlplan.planner.measured.tables import rl_steps
from rlplan.results.accuracy import Row

# Rows on which host times of engines and of frameworks, and frameworks' factors on stages, are fitted
# (benchmarks/fit_frameworks.py); all others are held back.
FITTED = frozenset({"n959_8b_mg", "n959_8b_mg_rerun", "n959_8b_dt", "gpg_fsdp7b", "mi300_ppo7b"})


def rows_of(record: Record, site: Calibration = NO_CALIBRATION) -> Iterator[Row]:
    """Yield the step of a record, or why it has no forecast."""
    for row in rl_steps.rows_of(record, site):
        yield replace(row, fitted=row.skipped is None and record["id"] in FITTED)


READER = replace(rl_steps.READER, rows_of=rows_of, calibrated_rows_of=rows_of)
