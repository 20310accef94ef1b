"""When a search beside a run is worth what it takes: not before its answer could be another one, and for a small share of the run.

A search answers by what was measured: lengths, and seconds of stages. So after one there is none

- as long as these have changed by less than chance or less than forecasts are off by, and are planned to have (`steady`);
- as long as the most that any plan could gain, over the iterations that are left, is less than a move costs (`cannot pay`);
- as long as searches would have taken more than their share (`spent`): workers that wait for each other all wait for the one whose
  core a search takes, so that a second of it may be a second of the run.

Where the job says how lengths grow, a plan that is best only for longer ones is known before it is: it is looked at again half-way to
the iteration from which it is forecast to be better, and half-way again, and not before (`planned`).

What a search has looked at is forecast again, which takes a fraction of it, until so much has changed that others may be best.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rlplan.plan import Plan
from rlplan.planner.adapting.proposing import Proposals
from rlplan.planner.adapting.window import Levels, Window, changes_of, planned_mean
from rlplan.profiles.analytic.efficiencies import load_spreads
from rlplan.results.advice import DoneIteration, Held
from rlplan.units import show_seconds

# Of a run's seconds, what searches beside it may take of a core's, in all.
RUN_SHARE: Final = 0.01
# Of what the best plan that is known is to gain until the run ends beyond the cost of a move, what looks may take on top, in all.
GAIN_SHARE: Final = 0.1
# What a first search is taken to take of a core: those of `benchmarks/adapting.py` took 0.2 to 1.3 s.
FIRST_CPU_SECONDS: Final = 0.5
# Newest iterations that are laid beside those of the last look: medians of three differ by chance.
COMPARED: Final = 10
# A first search waits for as many, or for a part of a short run's: what is measured later is laid beside these.
FIRST_PART: Final = 30
# By how much more lengths or seconds must differ from those of a search so that plans that it dropped may have come to be best.
ANEW_CHANGE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Say why no search is made, in a word and in a sentence."""

    held: Held
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Say that plans are to be looked at: those that are known, or, where there are none, what a search finds."""

    known: tuple[Plan, ...] = ()


class Pace:
    """Say after which iterations plans are looked at.

    Args:
        every: Iterations between two looks, at least.

    Attributes:
        levels: Of what was measured at the last look; None before the first by this plan.
        least_change: By which it must differ: a forecast is off by as much.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self.least_change = load_spreads().within_machine.value
        self.levels: Levels | None = None
        self._searched: Levels = {}
        self._after, self._searched_after, self._most_share = 0, 0, 1.0
        self._known: tuple[Plan, ...] = ()
        self._hoped_seconds = 0.0  # of an iteration
        self._better_after: int | None = None  # iterations of the run, as the last look planned it
        # On account of the run, and on account of what is to be gained; and which the look that is under way is on.
        self._spent_seconds, self._spent_on_gain_seconds, self._is_on_gain = 0.0, 0.0, False
        # By whether it searches.
        self._takes_seconds = {True: FIRST_CPU_SECONDS, False: FIRST_CPU_SECONDS}

    @property
    def spent_words(self) -> str:
        """Return what searches have taken until now."""
        spent = self._spent_seconds + self._spent_on_gain_seconds
        return f"searches have taken {show_seconds(spent)} of a core"

    def clear(self, done: int, known: tuple[Plan, ...] = ()) -> None:
        """Begin with another plan, or with new workers, after so many iterations.

        Args:
            known: Behind a move, the plans that may be looked at again without a search, that of before among them.
        """
        self.levels, self._searched = None, {}
        self._after, self._searched_after, self._most_share = done, done, 1.0
        self._known, self._hoped_seconds, self._better_after = known, 0.0, None

    def skip(self, window: Window, done: int) -> None:
        """Take what is measured after so many iterations for looked at; behind a move, for what its search was of."""
        self.levels, self._after = window.levels(COMPARED), done
        if self._known and not self._searched:
            self._searched, self._searched_after = self.levels, done

    def note(self, found: Proposals, *, is_present: bool) -> None:
        """Take note of what was found, and of what that took.

        Args:
            is_present: Whether the run goes on by the plan that it was asked for.
        """
        searched = not found.request.known
        if self._is_on_gain:
            self._spent_on_gain_seconds += found.cpu_seconds
        else:
            self._spent_seconds += found.cpu_seconds
        # Beside the search itself its plans are forecast, those that are known among them.
        self._takes_seconds[False] = found.cpu_seconds - found.search_cpu_seconds
        if searched:
            self._takes_seconds[True] = found.cpu_seconds + found.before_cpu_seconds
        if not is_present:
            return
        if searched:
            self._known, self._most_share = found.known, found.most_share
        best = found.plans[0] if found.plans else None
        self._hoped_seconds = 0.0 if best is None else max(0.0, best.gain_left.p50_seconds)
        self._better_after = None if best is None else best.better_after

    def after(
        self, window: Window, done: DoneIteration, cost: Callable[[], float]
    ) -> Look | Wait | None:
        """Return whether plans are looked at after an iteration; None where it is too early to tell.

        Args:
            cost: Returns what a move is taken to cost, in seconds; asked where something has changed.
        """
        number = done.span.iteration + 1
        if self.levels is None:
            if window.count < min(COMPARED, done.iterations // FIRST_PART):
                return None
        elif number - self._after < self._every:
            return None
        elif (wait := self._unlike(self.levels, window, done)) is not None:
            return wait
        move_seconds = cost()
        changed = self._changed(self._searched, self._searched_after, window, done)
        longest = max(1.0, _planned_change(done, number, done.iterations))
        most = window.step_seconds * longest * done.left * self._share_after(changed)
        if most <= move_seconds:
            words = (
                f"no plan could gain more than {show_seconds(most)} in the {done.left} iterations that are left, and a move takes "
                f"{show_seconds(move_seconds)}"
            )
            return Wait(held="cannot pay", words=words)
        searches = not self._known or changed > ANEW_CHANGE
        of_run, of_gain = self._shares(window, done, move_seconds)
        if searches and self._known and not self._affords(of_run, of_gain, searches=True):
            searches = False  # what is known may be looked at even so
        if not self._affords(of_run, of_gain, searches=searches):
            takes = self._takes_seconds[searches]
            more = f", and {show_seconds(of_gain)} of what is to be gained" if of_gain else ""
            words = (
                f"{self.spent_words}, the next would take {show_seconds(takes)}; theirs are "
                f"{show_seconds(of_run)} of the run{more}"
            )
            return Wait(held="spent", words=words)
        self.skip(window, number)
        if not searches:
            return Look(known=self._known)
        assert self.levels is not None, "they were taken"
        self._searched, self._searched_after = self.levels, number
        return Look()

    def _unlike(self, before: Levels, window: Window, done: DoneIteration) -> Wait | None:
        """Return why plans are not looked at as long as what is measured is as the last look had it, or planned it; None where it is not."""
        number = done.span.iteration + 1
        changed = self._changed(before, self._after, window, done)
        if self._better_after is not None:
            if number >= self._planned_look or changed > ANEW_CHANGE:
                return None
            words = f"another plan is forecast to be better once {self._better_after:,} iterations are done"
            return Wait(held="planned", words=words)
        if changed:
            return None
        return Wait(
            held="steady",
            words=f"lengths and seconds are those of the last search, within {self.least_change:.0%} and chance",
        )

    def _changed(self, before: Levels, after: int, window: Window, done: DoneIteration) -> float:
        """Return by what share what is measured, or the mean length by plan, differs from when levels were taken; 0 where that does not count.

        Args:
            after: How many iterations they were taken.
        """
        number = done.span.iteration + 1
        found = changes_of(before, window.levels(COMPARED), self.least_change)
        times = _planned_change(done, after, number)
        planned = max(times, 1 / times) - 1 if before else 0.0
        return max(0.0, *found.values(), planned if planned > self.least_change else 0.0)

    def _share_after(self, changed: float) -> float:
        """Return the share of an iteration that no plan gains more than, where what was measured has changed since the search.

        Iterations of one plan are taken to have changed by no more than that beside those of another.
        """
        return 1 - (1 - self._most_share) / (1 + changed)

    def _affords(self, of_run: float, of_gain: float, *, searches: bool) -> bool:
        """Tell whether a search, or a look at what is known, is within what looks may take in all; note on which account it goes."""
        takes = self._takes_seconds[searches]
        self._is_on_gain = self._spent_seconds + takes > of_run
        return not self._is_on_gain or self._spent_on_gain_seconds + takes <= of_gain

    @property
    def _planned_look(self) -> int:
        """Return after how many iterations a plan is looked at again that is planned: half-way, for what is measured later says more."""
        assert self._better_after is not None, "a plan is planned"
        half = self._after + (self._better_after - self._after) // 2
        return max(self._after + self._every, half)

    def _shares(
        self, window: Window, done: DoneIteration, move_seconds: float
    ) -> tuple[float, float]:
        """Return what looks may take of a core in all, in seconds: of the run until now, and of what is to be gained.

        The first one, and those of a move that is planned, are counted on the whole run.
        """
        seconds = done.span.end_seconds
        if self.levels is None or self._better_after is not None:
            seconds += window.step_seconds * done.left
        gain = max(0.0, self._hoped_seconds * done.left - move_seconds)
        return RUN_SHARE * seconds, GAIN_SHARE * gain


def _planned_change(done: DoneIteration, first: int, last: int) -> float:
    """Return how many times longer responses are by a run's job in one iteration than in another, counted from 1; 1 where it says nothing."""
    before, after = (
        planned_mean(done.plan, max(1, each), done.iterations) for each in (first, last)
    )
    return 1.0 if before is None or after is None else after / before
