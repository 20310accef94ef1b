"""Errors against what was measured and published, by table, system and case."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from rlplan.estimate import Estimate
from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan
from rlplan.results.forecast import Forecast


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


Quantity = Literal["tokens_per_second", "frames_per_second", "seconds", "bytes"]

REPRODUCTION_VERSION: Literal[1] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Hold one point of a figure: the forecast, and the published value where rlplan has it.

    Attributes:
        panel: Part of the figure, such as `PPO 7B`.
        series: Curve or group of bars, such as `DS-Chat`.
        forecast: In the quantity's unit; None where nothing fits.
        published: The published value; None where rlplan holds none.
        plan: The forecast's plan in a few words.
        reason: Why there is no forecast.
        is_comparable: Whether the published value is of the same thing (a run time on another machine
            is not).
    """

    figure: str
    panel: str
    series: str
    gpus: int
    quantity: Quantity
    forecast: float | None = None
    published: float | None = None
    plan: str = ""
    reason: str = ""
    is_comparable: bool = True

    @property
    def error_fraction(self) -> float | None:
        """Return (forecast - published) / published; None where either is missing."""
        if self.forecast is None or not self.published or not self.is_comparable:
            return None
        return (self.forecast - self.published) / self.published


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Hold one claim of the publication and what the forecasts say to it.

    Attributes:
        where: Section or figure that makes it.
        holds: Whether it holds in the forecasts.
        evidence: The figures that say so.
    """

    where: str
    text: str
    holds: bool
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Hold a reproduced evaluation.

    Attributes:
        source: The publication.
        notes: What a reader must know before judging: assumptions, known inconsistencies.
    """

    version: Literal[1] = REPRODUCTION_VERSION
    name: str
    title: str
    source: str
    notes: tuple[str, ...]
    points: tuple[Point, ...]
    claims: tuple[Claim, ...]


COMPARISON_VERSION: Literal[1] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemForecast:
    """Hold the best plan that a system can express for a job.

    Attributes:
        name: As the user types it, such as `openrlhf-0.2`.
        about: How the system runs a job, in one sentence.
        plan: None when no plan of it fits.
        forecast: That of the plan.
        reason: Why the system cannot run the job; None when it can.
        considered: Plans that were looked at.
    """

    name: str
    about: str
    plan: Plan | None = None
    forecast: Forecast | None = None
    reason: str | None = None
    considered: int = 0

    @property
    def seconds(self) -> float | None:
        """Return the seconds of an iteration; None when nothing fits."""
        return self.forecast.iteration_seconds if self.forecast else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemsComparison:
    """Hold our plan of a job beside those of other systems, in the order asked for.

    Attributes:
        ours: The plan that the search found.
        systems: The other systems.
        note: What our plan has otherwise than the job says; empty where it has nothing.
    """

    version: Literal[1] = COMPARISON_VERSION
    job: str
    ours: SystemForecast
    systems: tuple[SystemForecast, ...]
    note: str = ""

    def speed_up(self, system: SystemForecast) -> float | None:
        """Return how many times as fast our plan is as a system's; None when one has no plan."""
        if system.seconds is None or self.ours.seconds is None:
            return None
        return system.seconds / self.ours.seconds


Outcome = Literal["runs", "oom"]
Group = Literal[
    "shown", "collected", "later", "newer", "newest", "latest", "added", "gathered", "blind", "drawn", "further", "forked",
    "sought", "host", "bug",
]  # fmt: skip
Said = Literal["fits", "may not fit", "does not fit", "no answer"]
Score = Literal["right", "may", "wrong"]

# What of the groups counts: those whose outcome is the GPUs', and the configuration's.
COUNTED: tuple[Group, ...] = (
    "shown", "collected", "later", "newer", "newest", "latest", "added", "gathered", "blind", "drawn", "further", "forked",
    "sought",
)  # fmt: skip
RIGHT: dict[Outcome, Said] = {"runs": "fits", "oom": "does not fit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCase:
    """Hold a configuration that somebody reported, and what happened.

    Attributes:
        case: Name of the folder with its files.
        framework: Whose configuration it is; `plan` is a plan of rlplan's own.
        arguments: What `rlplan check` is told beside the file.
        outcome: Whether it ran or ran out of memory; of the host's memory in group `host`.
        peak_bytes: Of a GPU, where the report has it.
        trainer_bytes: Most that the trainer's process had allocated, as PyTorch counts it, where it is no engine's process too.
        host_memory_bytes: Of a node, where the outcome is the host's.
        group: `shown`, `collected`, `later`, `newer`, `newest`, `latest`, `added`, `gathered`, `blind`, `drawn`, `further`, `forked` and `sought` were gathered one after the
            other; `bug` is caused by a fault of one version.
        trust: How complete the report is: high, medium or low; empty where nobody judged it.
        stage: When it ran out, in the report's words.
        version: Of framework and engine, as far as the report says it.
        assumed: What the report leaves open, and was filled in.
        if_wrong: What is probably behind a wrong answer.
    """

    case: str
    framework: str
    file: str
    arguments: str
    outcome: Outcome
    peak_bytes: int | None
    trainer_bytes: int | None = None
    host_memory_bytes: int | None
    group: Group
    trust: str
    stage: str
    version: str
    source: str
    assumed: str
    if_wrong: str

    @property
    def label(self) -> str:
        """Return its name, with its file where that says more."""
        words = [word for word in self.arguments.split(" --")[0].split() if "=" in word]
        return " ".join((self.case, self.file.rpartition("/")[2], *words))


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRow:
    """Hold what is said of a case.

    Attributes:
        forecast_bytes: Peak of the fullest GPU; of a node's host in group `host`.
        capacity_bytes: What there is.
        trainer_bytes: Most that trainers allocate on a GPU while they train or score, where that was measured.
        during: When memory runs out first; empty where it does not.
        why: Why there is no answer.
    """

    case: FitCase
    said: Said
    forecast_bytes: int | None = None
    capacity_bytes: int | None = None
    trainer_bytes: int | None = None
    during: str = ""
    why: str = ""

    @property
    def score(self) -> Score:
        """Tell whether the answer is what happened, or is not sure of it, or is wrong."""
        if self.said == RIGHT[self.case.outcome]:
            return "right"
        return "may" if self.said == "may not fit" else "wrong"

    @property
    def error_fraction(self) -> float | None:
        """Return (forecast - measured) / measured of a peak; None where nothing was measured."""
        if not self.case.peak_bytes or self.forecast_bytes is None:
            return None
        return (self.forecast_bytes - self.case.peak_bytes) / self.case.peak_bytes

    @property
    def trainer_error(self) -> float | None:
        """Return (forecast - measured) / measured of what a trainer allocates; None where that was not measured."""
        if not self.case.trainer_bytes or self.trainer_bytes is None:
            return None
        return (self.trainer_bytes - self.case.trainer_bytes) / self.case.trainer_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FitTotals:
    """Count answers.

    Attributes:
        oom: Reports of memory that ran out.
        oom_seen: Those of them that are not said to fit.
        peaks: Measured peaks with a forecast.
        median_error, worst_error: Of these, without sign.
    """

    rows: int
    right: int
    may: int
    wrong: int
    oom: int
    oom_seen: int
    peaks: int
    median_error: float | None
    worst_error: float | None


def totals_of(rows: Sequence[FitRow]) -> FitTotals:
    """Count the answers of some rows."""
    scores = [row.score for row in rows]
    oom = [row for row in rows if row.case.outcome == "oom"]
    errors = [abs(row.error_fraction) for row in rows if row.error_fraction is not None]
    return FitTotals(
        rows=len(rows),
        right=scores.count("right"),
        may=scores.count("may"),
        wrong=scores.count("wrong"),
        oom=len(oom),
        oom_seen=sum(row.said in {"may not fit", "does not fit"} for row in oom),
        peaks=len(errors),
        median_error=median(errors) if errors else None,
        worst_error=max(errors, default=None),
    )
