"""Forecasts against measurements that others published, row by row and summed up."""

from dataclasses import dataclass
from statistics import median

from rlplan.estimate import Estimate
from rlplan.files.frozen import FrozenDict


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Hold the seconds of one stage of a step, such as `generation` or `update_actor`.

    Attributes:
        measured_seconds: None where the stage was not published.
        forecast_seconds: What is forecast of it.
        engine: Engine that does the work; empty where it matters to nobody.
        inner_seconds: Those of the forecast that belong to other stages, by their names: what a stage's timer
            holds of them.
        link_seconds: Those of the forecast that collectives on each kind of link are answerable for,
            by `rlplan.calibration.LINKS`, where they were looked into.
    """

    measured_seconds: float | None = None
    forecast_seconds: float
    engine: str = ""
    inner_seconds: FrozenDict[str, float] = FrozenDict()
    link_seconds: FrozenDict[str, float] = FrozenDict()

    @property
    def error_fraction(self) -> float | None:
        """Return (forecast - measured) / measured; None where nothing was measured."""
        if not self.measured_seconds:
            return None
        return (self.forecast_seconds - self.measured_seconds) / self.measured_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Hold one measurement with its forecast.

    Attributes:
        table: Name of the table.
        schema: Name of the reader that knows its columns.
        index: Position of the record in the file, from 0; a record may hold several measurements.
        label: What was measured, for people ("7B TP2 PP1 DP4, micro-batch 8").
        kind: Measurements of a table that are judged apart (an operator, an engine, a system).
        measured_seconds: None where a skipped record holds no number, or a row is of bytes.
        measured_bytes: Peak memory, for rows of bytes in place of seconds.
        forecast_bytes: What is forecast of it.
        measured_fits: Whether what was run fitted into memory; None where that is not told.
        forecast_fits: Whether it is forecast to fit.
        forecast: None for a skipped row.
        skipped: Why there is no forecast.
        fitted: Whether a constant of ours was fitted on this row.
        unseen: Whether the row stands in no table that the project knows.
        group: Framework and GPU, for rows that calibrate each other; empty for rows that do not.
        stages: Seconds by stage of the step (names of `rlplan.calibration.STEP_STAGES`), measured and
            forecast; of a stage that was forecast and not published the forecast only.
        path_seconds: Of the forecast's step, by stage, what each occupies on the critical path, where stages
            overlap; empty where they follow each other.
        given_seconds: Of the step, what its source tells and the forecast takes as it is, such as rewards.
        calibrated_errors: Signed errors after the forecast was calibrated on one other row of the
            group, for each of these rows.
        note: What was searched or assumed where the table does not say it.
        interval_seconds: (p10, p90) of the forecast; None for a skipped row.
    """

    table: str = ""
    schema: str = ""
    index: int = 0
    label: str
    kind: str = ""
    measured_seconds: float | None = None
    measured_bytes: float | None = None
    forecast_bytes: float | None = None
    measured_fits: bool | None = None
    forecast_fits: bool | None = None
    forecast: Estimate | None = None
    skipped: str | None = None
    fitted: bool = False
    unseen: bool = False
    group: str = ""
    stages: FrozenDict[str, StageSeconds] = FrozenDict()
    path_seconds: FrozenDict[str, float] = FrozenDict()
    given_seconds: float = 0.0
    calibrated_errors: tuple[float, ...] = ()
    note: str = ""
    interval_seconds: tuple[float, float] | None = None

    @property
    def unit(self) -> str:
        """Return the unit of the measured value."""
        return "seconds" if self.forecast_bytes is None else "bytes"

    @property
    def measured(self) -> float | None:
        """Return what was measured, in its unit."""
        return self.measured_seconds if self.forecast_bytes is None else self.measured_bytes

    @property
    def predicted(self) -> float | None:
        """Return what is forecast, in the unit of the measured value; None for a skipped row."""
        if self.forecast_bytes is not None:
            return self.forecast_bytes
        return None if self.forecast is None else self.forecast.seconds

    @property
    def error_fraction(self) -> float | None:
        """Return (forecast - measured) / measured; None for a skipped row, or where nothing is measured."""
        if self.predicted is None or self.measured is None:
            return None
        return (self.predicted - self.measured) / self.measured

    @property
    def calibrated_error(self) -> float | None:
        """Return the absolute error after calibration on one other row: the median over such rows.

        None where the group has no other row.
        """
        if not self.calibrated_errors:
            return None
        return median(abs(error) for error in self.calibrated_errors)

    @property
    def wrong_verdict(self) -> bool:
        """Tell whether what fitted is forecast not to fit, or the other way round."""
        known = self.measured_fits is not None and self.forecast_fits is not None
        return known and self.measured_fits != self.forecast_fits

    @property
    def inside_interval(self) -> bool | None:
        """Tell whether the measurement lies between p10 and p90; None for a skipped row."""
        if self.interval_seconds is None or self.measured_seconds is None:
            return None
        return self.interval_seconds[0] <= self.measured_seconds <= self.interval_seconds[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Hold absolute errors of some rows, as fractions of the measured values.

    Attributes:
        rows: How many have an error; all errors are None where none has.
    """

    rows: int = 0
    median_error: float | None = None
    mean_error: float | None = None
    p90_error: float | None = None
    worst_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Hold the errors of a table, as fractions of the measured values.

    Attributes:
        rows: Rows with a forecast.
        skipped: Rows without one.
        median_error: Median absolute error; None (as all errors) when no row has a forecast.
        bias: Mean signed error: above zero when forecasts are too long.
        verdicts: Rows that say whether what was run fitted into memory.
        wrong_verdicts: Those of them that are forecast otherwise.
        coverage: Share of the rows that lie inside their p10 to p90 interval.
        unseen_rows: Rows with a forecast that stand in no table that the project knows.
        after_calibration: Errors of rows after one other row of their group was calibrated on.
        stages: Errors by stage of the step; empty for tables without stages.
        skipped_reasons: Skipped rows by reason.
        notes: What was searched or assumed, and for how many rows.
    """

    table: str
    rows: int
    skipped: int
    median_error: float | None
    mean_error: float | None
    p90_error: float | None
    worst_error: float | None
    bias: float | None
    coverage: float | None
    fitted_rows: int
    unseen_rows: int
    verdicts: int
    wrong_verdicts: int
    after_calibration: Errors
    stages: FrozenDict[str, Errors]
    skipped_reasons: FrozenDict[str, int]
    notes: FrozenDict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Say why forecasts of some rows miss.

    Attributes:
        where: What the row's kind and label contain ("HybridFlow 7B"); empty: every row.
        why: What was found.
    """

    where: str = ""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFindings:
    """Hold what is to be told of one table.

    Attributes:
        about: What the table measures and what the forecasts take as given.
        whole: Errors of all rows.
        fitted: Errors of the rows that constants of ours were fitted on.
        held: Errors of the rows of known tables that were held back from every fit.
        unseen: Errors of rows that stand in no table that the project knows.
        kinds: Errors of the rows that no constant was fitted on, by kind.
        miss_fraction: A row whose error is larger is a miss.
        causes: Why rows miss; the first that fits a row is its cause.
    """

    about: str
    rows: tuple[Row, ...]
    whole: Summary
    fitted: Summary
    held: Summary
    unseen: Summary
    kinds: tuple[Summary, ...]
    miss_fraction: float
    causes: tuple[Cause, ...]

    @property
    def misses(self) -> tuple[Row, ...]:
        """Return the rows whose error is larger than what counts as a miss, the worst first."""
        known = [(abs(row.error_fraction or 0.0), row) for row in self.rows]
        found = [pair for pair in known if pair[0] > self.miss_fraction]
        return tuple(row for _, row in sorted(found, key=lambda pair: -pair[0]))

    def cause_of(self, row: Row) -> str:
        """Return why a row misses; empty where no cause is known."""
        text = f"{row.kind} {row.label}"
        return next((cause.why for cause in self.causes if cause.where in text), "")
