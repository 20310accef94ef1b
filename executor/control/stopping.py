"""When a run stops before its last iteration: at so many tokens, after so long, or once a metric is reached."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt
from pathlib import Path

from rlplan.errors import FileError, nearest_name
from rlplan.executor.control.evaluations import EVALUATION, found_after
from rlplan.executor.control.metrics import METRICS_FILE, read_metrics
from rlplan.units import show_seconds

WHEN, AFTER, TOKENS = "--stop-when", "--stop-after", "--stop-tokens"
# Names that an iteration's metrics have for what these two count.
SECONDS, LEARNT_TOKENS = "seconds", "learnt_tokens"

COMPARATORS: Mapping[str, Callable[[float, float], bool]] = {">=": ge, "<=": le, ">": gt, "<": lt}
_CONDITION = re.compile(r"\s*([\w/.@-]+)\s*(>=|<=|>|<)\s*([^\s<>=]+)\s*")
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_DURATION = re.compile(rf"(?=.)(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?")
_SECONDS_OF_UNITS = (3600.0, 60.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Compare a metric of an iteration with a bound.

    Attributes:
        metric: Its name in `metrics.jsonl`.
        comparator: A key of `COMPARATORS`.
        bound: In the metric's unit.
    """

    metric: str
    comparator: str
    bound: float

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Tell whether it holds; it does not where the metric is missing or NaN."""
        value = metrics.get(self.metric, math.nan)
        return COMPARATORS[self.comparator](value, self.bound)

    def __str__(self) -> str:
        """Return it as a user types it."""
        return f"{self.metric}{self.comparator}{self.bound:.15g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """Say when a run stops before its last iteration: after the first one at whose end any of these holds.

    Attributes:
        when: Conditions on an iteration's metrics.
        after_seconds: Of iterations in all, those before a resume counted.
        tokens: Of responses that were learnt from in all, those before a resume counted.
    """

    when: tuple[Condition, ...] = ()
    after_seconds: float | None = None
    tokens: float | None = None

    @property
    def counts(self) -> bool:
        """Tell whether it needs the sums over all iterations."""
        return self.after_seconds is not None or self.tokens is not None

    @property
    def asks_evaluations(self) -> bool:
        """Tell whether an evaluation may end the run."""
        return any(each.metric.startswith(f"{EVALUATION}/") for each in self.when)

    def check_names(self, known: Iterable[str]) -> None:
        """Refuse conditions on metrics that the run will not have.

        Raises:
            FileError: Names the condition and the metric nearest to it.
        """
        names = sorted(known)
        for condition in self.when:
            if condition.metric not in names:
                _refuse_metric(condition, names)


class StopCheck:
    """Tell after every iteration whether a run stops, and why.

    Args:
        stopping: When it does.
        before: Metrics of the iterations that were done before, the last one last.
        later: Names of metrics that not every iteration has.

    Attributes:
        reason: Why it stops, for people; empty as long as it goes on.
    """

    def __init__(
        self,
        stopping: Stopping,
        before: Sequence[Mapping[str, float]] = (),
        later: Iterable[str] = (),
    ) -> None:
        self._stopping, self._later = stopping, frozenset(later)
        self._seconds, self._tokens = 0.0, 0.0
        self._is_first = True
        self.reason = ""
        if stopping.counts:
            for row in before:
                self._add(row)
        if before:
            self.reason = self._reason(before[-1])

    def note(self, metrics: Mapping[str, float]) -> None:
        """Take an iteration that is done into account.

        Raises:
            FileError: A condition names a metric that the run does not have.
        """
        if self._is_first:
            self._stopping.check_names({*metrics, *self._later})
            self._is_first = False
        self._add(metrics)
        self.reason = self._reason(metrics)

    def note_evaluation(self, found: Mapping[str, float]) -> None:
        """Take what an evaluation found into account, by the names that metrics have; nothing changes nothing."""
        if found and not self.reason:
            self.reason = self._reason(found)

    def _add(self, row: Mapping[str, float]) -> None:
        self._seconds += row[SECONDS]
        self._tokens += row.get(LEARNT_TOKENS, 0.0)

    def _reason(self, last: Mapping[str, float]) -> str:
        stopping = self._stopping
        for condition in stopping.when:
            if condition.holds(last):
                value = last[condition.metric]
                return f"{condition.metric} is {value:.6g} ({WHEN} '{condition}')"
        if stopping.after_seconds is not None and self._seconds >= stopping.after_seconds:
            limit = show_seconds(stopping.after_seconds)
            return f"{show_seconds(self._seconds)} of iterations ({AFTER} {limit})"
        if stopping.tokens is not None and self._tokens >= stopping.tokens:
            return f"{self._tokens:,.0f} tokens learnt from ({TOKENS} {stopping.tokens:,.15g})"
        return ""


def rows_before(
    folders: Iterable[Path], iterations: int, stopping: Stopping
) -> list[dict[str, float]]:
    """Return the metrics of the iterations that a run has behind it, as far as its stopping asks for them.

    The last one has what an evaluation after it found too.

    Args:
        folders: Of the runs that it went through; what is in a later one was done again.
        iterations: That are behind it.

    Raises:
        FileError: Some are missing that are to be counted.
    """
    if stopping == Stopping():
        return []
    folders = list(folders)
    by_iteration: dict[int, dict[str, float]] = {}
    for folder in folders:
        own = read_metrics(folder) if (folder / METRICS_FILE).exists() else []
        by_iteration |= {int(row["iteration"]): row for row in own}
        last = by_iteration.get(iterations - 1)
        if (
            last is not None
        ):  # what was found before it was done again goes with the row that it was found behind
            last |= found_after(folder, iterations)
    if not stopping.counts:
        return [by_iteration[last] for last in (iterations - 1,) if last in by_iteration]
    option, name = (AFTER, SECONDS) if stopping.tokens is None else (TOKENS, LEARNT_TOKENS)
    for iteration in range(iterations):
        if name not in by_iteration.get(iteration, ()):
            where = ", ".join(str(folder / METRICS_FILE) for folder in folders)
            problem = f"{where} does not have {name} of iteration {iteration}, which is counted too"
            raise FileError(option, problem, allowed="a run that goes on in its own folder")
    return [by_iteration[iteration] for iteration in range(iterations)]


def stops_at_once(folder: Path, iterations: int, stopping: Stopping) -> str:
    """Return why a run stops that goes on after so many iterations of a folder; empty where it does not.

    Raises:
        FileError: Metrics are missing that are to be counted.
    """
    return StopCheck(stopping, rows_before([folder], iterations, stopping)).reason


def check_goes_on(checkpoint: Path, folder: Path, iterations: int, stopping: Stopping) -> None:
    """Refuse to go on where a run would stop at once.

    Args:
        checkpoint: With which it begins, after so many iterations.
        folder: Of the run that wrote it.

    Raises:
        FileError: Says what holds already.
    """
    reason = stops_at_once(folder, iterations, stopping)
    if reason:
        problem = f"stops at once, after {iterations} iterations: {reason} holds already"
        raise FileError(str(checkpoint), problem, allowed="conditions that do not hold yet")


def stopping_of(
    when: Iterable[str] = (), after: str | None = None, tokens: float | None = None
) -> Stopping:
    """Return when a run stops, from what options say.

    Raises:
        FileError: Names the option, what was found and what is allowed.
    """
    if tokens is not None and not (math.isfinite(tokens) and tokens > 0):
        raise FileError(TOKENS, "is no number of tokens", value=tokens, allowed="above 0")
    return Stopping(
        when=tuple(condition_of(text) for text in when),
        after_seconds=None if after is None else duration_seconds(after),
        tokens=tokens,
    )


def condition_of(text: str) -> Condition:
    """Return a condition such as `mean_reward>=0.9`.

    Raises:
        FileError: It is none.
    """
    found = _CONDITION.fullmatch(text)
    bound = math.nan if found is None else _number(found[3])
    if found is None or not math.isfinite(bound):
        allowed = (
            f"a metric, one of {', '.join(COMPARATORS)}, and a number, such as 'mean_reward>=0.9'"
        )
        raise FileError(WHEN, "is no condition", value=text, allowed=allowed)
    return Condition(metric=found[1], comparator=found[2], bound=bound)


def duration_seconds(text: str) -> float:
    """Return the seconds of a duration such as `90s`, `45m`, `1.5h` or `1h30m`.

    Raises:
        FileError: It is none, or nothing.
    """
    found = _DURATION.fullmatch(text.strip())
    parts = found.groups(default="0") if found is not None else ()
    seconds = sum(float(part) * unit for part, unit in zip(parts, _SECONDS_OF_UNITS, strict=False))
    if not (math.isfinite(seconds) and seconds > 0):
        allowed = "numbers with h, m and s, such as 90s, 45m, 1.5h or 1h30m"
        raise FileError(AFTER, "is no duration", value=text, allowed=allowed)
    return seconds


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _refuse_metric(condition: Condition, names: Sequence[str]) -> None:
    raise FileError(
        WHEN,
        "no metric of this run has that name",
        value=condition.metric,
        allowed=", ".join(names),
        nearest=_nearest(condition.metric, names),
    )


def _nearest(name: str, names: Sequence[str]) -> str | None:
    """Return the name most like one; of the same words in another order, as in `reward_mean`, that one."""
    words = sorted(re.split(r"[_/.-]", name.lower()))
    same = (each for each in names if sorted(re.split(r"[_/.-]", each)) == words)
    return next(same, None) or nearest_name(name, names)
