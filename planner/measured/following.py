"""Follow a log: its steps with their numbers since the run last started, the recent ones, and what left its normal range."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from rlplan.errors import FileError
from rlplan.planner.measured.logs import (
    STEP_COLUMNS,
    Figures,
    medians_of,
    steps_of_log,
)
from rlplan.planner.measured.trackers import event_files, tracked_files
from rlplan.results.advice import Departure
from rlplan.results.measurement import LoggedSteps, LogSheet

# Medians of fewer steps say nothing.
LEAST_STEPS = 3
# The newest steps that are laid beside those before.
NEWEST = 3
# Standard deviations beyond which a value is unlike the others (Pukelsheim 1994, The American Statistician 48, 88).
NORMAL_STDS = 3.0
# From the median absolute deviation to a standard deviation, of normal errors (Rousseeuw and Croux 1993, JASA 88, 1273).
MAD_TO_STD = 1.4826
# What stages of one site differ by at least, from step to step: `of_step` of profiles/fits/calibration.yaml, to which
# published stages add up.
LEAST_SPREAD = 0.02
# A log is said to stand still where it has had no new step for as many of its longest ones, and at least so long:
# validations and checkpoints lie between steps too.
SILENT_STEPS, SILENT_SECONDS = 10.0, 600.0
# What trackers call the step's number beside what tables do (verl's `training/global_step`).
NUMBER_KEYS = (*STEP_COLUMNS, "training/global_step", "train/global_step")


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedRun:
    """Hold the steps of a log since the run last started.

    Attributes:
        numbers: Of the steps, by the log where it has whole numbers that grow, else counted from 1.
        before_seconds: Of all logged steps of starts before.
        begins: Whether the first of the steps is the first of a start: step 0 or 1, or one whose number falls back.
        from_zero: Whether the log's first step is step 0, so that the last of N is step N - 1.
        held_back: Steps that are there and do not count yet, since they may still be written.
    """

    sheet: LogSheet
    numbers: tuple[int, ...]
    steps: tuple[Figures, ...]
    before_seconds: float = 0.0
    begins: bool = False
    from_zero: bool = False
    held_back: int = 0

    def until(self, count: int) -> "FollowedRun":
        """Return the same without what came after so many steps."""
        return replace(self, numbers=self.numbers[:count], steps=self.steps[:count])

    def goes_on(self, before: "FollowedRun") -> bool:
        """Tell whether it is the same start of the run as an earlier look at its log, with no step fewer: not begun again, nor in a new file."""
        alike = self.numbers[: len(before.numbers)] == before.numbers
        return alike and self.before_seconds == before.before_seconds

    @property
    def time_seconds(self) -> float:
        """Return the seconds of all logged steps."""
        return self.before_seconds + _seconds(self.sheet, self.steps)

    def medians(self, window: int, warmup: int) -> LoggedSteps | None:
        """Return the medians of the last steps of a window, without those of the warm-up; None where too few are left."""
        found = self.steps[warmup:][-window:]
        return medians_of(self.sheet, found) if len(found) >= LEAST_STEPS else None

    def after(self, number: int) -> "FollowedRun":
        """Return the steps of higher numbers."""
        first = next((at for at, each in enumerate(self.numbers) if each > number), len(self.steps))
        return FollowedRun(
            sheet=self.sheet,
            numbers=self.numbers[first:],
            steps=self.steps[first:],
            before_seconds=self.before_seconds + _seconds(self.sheet, self.steps[:first]),
        )

    def start_up_seconds(self) -> float | None:
        """Return what the first step of a start took longer than those behind; None where the log does not show it."""
        known = [each[self.sheet.step] for each in self.steps if self.sheet.step in each]
        if not self.begins or len(known) != len(self.steps) or len(known) <= LEAST_STEPS:
            return None
        longer = known[0] - median(known[1:])
        return longer if longer > 0 else None


def _seconds(sheet: LogSheet, steps: Sequence[Figures]) -> float:
    return sum(each.get(sheet.step, 0.0) for each in steps)


def followed(path: Path, *, updates: int = 1, grows: bool = False) -> FollowedRun | None:
    """Return the steps of a log since its run last started; None where there are none yet.

    Of a file that grows, a step whose figures stand on several lines counts once another follows.

    Args:
        updates: Of an iteration, where a log's steps are updates.

    Raises:
        FileError: The file cannot be read.
    """
    found = steps_of_log(path, updates=updates, grows=grows)
    if found is None:
        return None
    sheet, steps = found.sheet, tuple(found.steps)
    # Figures of one step that stand on several lines, or in several records, come one after another.
    is_spread = sheet.console_step or sheet.console_timers or sheet.merged_by or event_files(path)
    held_back = 1 if grows and is_spread else 0
    steps = steps[: len(steps) - held_back]
    numbers = _numbers(sheet, steps)
    first = max((at for at in range(1, len(numbers)) if numbers[at] <= numbers[at - 1]), default=0)
    if not steps:
        return None
    return FollowedRun(
        sheet=sheet,
        numbers=numbers[first:],
        steps=steps[first:],
        before_seconds=_seconds(sheet, steps[:first]),
        begins=first > 0 or numbers[0] <= 1,
        from_zero=numbers[0] == 0,
        held_back=held_back,
    )


def _numbers(sheet: LogSheet, steps: Sequence[Figures]) -> tuple[int, ...]:
    """Return the numbers of steps; counted from 1 where the log has none for all of them."""
    for key in dict.fromkeys((sheet.merged_by, *NUMBER_KEYS, "Step")):
        found = [each.get(key) for each in steps] if key else []
        known = [
            int(each) for each in found if each is not None and each >= 0 and each == int(each)
        ]
        if len(known) == len(steps):
            return tuple(known)
    return tuple(range(1, len(steps) + 1))


class Silence:
    """Tell once when a log that is followed has had no new step for long.

    Args:
        tell: Called with what is said.
        clock: Seconds that only grow.
    """

    def __init__(
        self, tell: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell, self._clock = tell, clock
        self._since, self._steps, self._most_seconds = clock(), -1, SILENT_SECONDS
        self._is_told = False

    def note(self, run: FollowedRun) -> None:
        """Note what the log has now."""
        if len(run.steps) == self._steps:
            return
        self._since, self._steps, self._is_told = self._clock(), len(run.steps), False
        longest = max((each.get(run.sheet.step, 0.0) for each in run.steps), default=0.0)
        self._most_seconds = max(SILENT_SECONDS, SILENT_STEPS * longest)

    def look(self) -> None:
        """Tell if it is silent for long."""
        seconds = self._clock() - self._since
        if not self._is_told and seconds > self._most_seconds:
            self._is_told = True
            steps = f"no step after the last of {self._steps}" if self._steps >= 0 else "no step"
            self._tell(
                f"{steps} for {seconds / 60:.0f} min: has the run ended, or does its log lie elsewhere now?"
            )


def states_of(
    path: Path, wait: Callable[[], None], silence: Silence, *, updates: int = 1
) -> Iterator[FollowedRun]:
    """Yield the steps of a log that grows whenever it has changed, and has some.

    A log that is moved away and begun again, as rotation does it, is taken up where it is there again.

    Args:
        wait: Returns when it is time for the next look.
        updates: Of an iteration, where a log's steps are updates.

    Raises:
        FileError: The file is none, is too large, or is of several runs.
    """

    def wait_and_look() -> None:
        wait()
        silence.look()

    for _ in changes_of(path, wait_and_look):
        try:
            found = followed(path, updates=updates, grows=True)
        except FileError:
            if path.exists():
                raise
            continue
        if found is not None:
            silence.note(found)
            yield found


def changes_of(path: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Yield once a log is there, and again whenever it has changed; between two looks, wait.

    Args:
        wait: Returns when it is time for the next look.
    """
    seen: tuple[tuple[int, int], ...] = ()
    while True:
        now = _state(path)
        if now and now != seen:
            seen = now
            yield
        else:
            wait()


def _state(path: Path) -> tuple[tuple[int, int], ...]:
    """Return sizes and times of change of a log's files; nothing where it is not there yet."""
    found = []
    for file in tracked_files(path) or (() if path.is_dir() else (path,)):
        try:
            held = file.stat()
        except FileNotFoundError:
            continue
        found.append((held.st_size, held.st_mtime_ns))
    return tuple(found)


def newest_apart(
    run: FollowedRun, window: int, warmup: int
) -> tuple[FollowedRun, FollowedRun] | None:
    """Return the steps before the newest ones, as many as a window has, and the newest; None where they are too few."""
    first = max(warmup, len(run.steps) - window - NEWEST)
    if len(run.steps) - first < LEAST_STEPS + NEWEST:
        return None
    before, newest = (
        FollowedRun(sheet=run.sheet, numbers=run.numbers[part], steps=run.steps[part])
        for part in (slice(first, -NEWEST), slice(-NEWEST, None))
    )
    return before, newest


def unlike_before(before: FollowedRun, newest: FollowedRun) -> tuple[Departure, ...]:
    """Return the stages, and the step, whose newest medians lie outside the spread of the steps before."""
    sheet, found = before.sheet, []
    keys = dict(sheet.stages) | {sheet.step: "step"}
    for key, name in keys.items():
        known, now = ([each[key] for each in run.steps if key in each] for run in (before, newest))
        if len(known) < LEAST_STEPS or not now:
            continue
        low, high = spread_of(known)
        measured = median(now)
        if not low <= measured <= high:
            found.append(
                Departure(
                    name=name,
                    measured_seconds=measured,
                    normal_seconds=(low, high),
                    beside="steps before",
                )
            )
    return tuple(found)


def spread_of(values: Sequence[float]) -> tuple[float, float]:
    """Return between which bounds values like these lie: their median and robust spread, in their own unit."""
    middle = median(values)
    std = MAD_TO_STD * median(abs(each - middle) for each in values)
    width = NORMAL_STDS * max(std, LEAST_SPREAD * abs(middle))
    return max(0.0, middle - width), middle + width
