"""Reported runs whose outcome is known, and what is said of their memory: row by row, and counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

Outcome = Literal["runs", "oom"]
Group = Literal["shown", "collected", "host", "bug"]
Said = Literal["fits", "may not fit", "does not fit", "no answer"]
Score = Literal["right", "may", "wrong"]

# What of the groups counts: those whose outcome is the GPUs', and the configuration's.
COUNTED: tuple[Group, ...] = ("shown", "collected")
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
        host_memory_bytes: Of a node, where the outcome is the host's.
        group: `shown` and `collected` were gathered one after the other; `bug` is caused by a fault of one version.
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
        during: When memory runs out first; empty where it does not.
        why: Why there is no answer.
    """

    case: FitCase
    said: Said
    forecast_bytes: int | None = None
    capacity_bytes: int | None = None
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
