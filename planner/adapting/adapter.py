"""Decide, iteration by iteration, whether a run moves to another plan; judge each move, and write both down.

A search beside the run says what another plan gains, as an interval. The run moves where the low end, as a mean over the iterations that
are left, times their number is more than a move costs, and where waiting gains nothing: the next iterations too are
to become shorter. What came of it is measured: the iterations behind the move, beside those before it at the same
lengths, by the ratio of the old plan's forecasts at both.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from math import hypot
from pathlib import Path
from typing import Final, Protocol

from rlplan.errors import UserError
from rlplan.files.decoding import read_yaml
from rlplan.plan import Plan
from rlplan.planner.adapting.coming import (
    Coming,
    expected_devices,
    generating_gpus,
    on_devices,
)
from rlplan.planner.adapting.pacing import Look, Pace, Wait
from rlplan.planner.adapting.proposing import (
    ENDS,
    Proposal,
    Proposals,
    Request,
    at_present_lengths,
    beside,
    gains_of,
    in_layout_of,
    most_staleness,
    plan_changes,
    same_layout,
    with_forecasts,
)
from rlplan.planner.adapting.window import Window, departures_of, median_width
from rlplan.planner.answers.best_plans import SEARCH_SECONDS
from rlplan.planner.measured.gains import answer_of
from rlplan.planner.measured.ledger import read_ledger, write_line
from rlplan.planner.measured.measured_lengths import at_run_lengths
from rlplan.profiles.facts import Facts
from rlplan.replicas import GENERATE, ReplicaChoice, ReplicaDevices, with_replicas
from rlplan.results.advice import (
    AS_IT_IS,
    Adaptation,
    AdviceLine,
    Barred,
    Decision,
    Departure,
    DoneIteration,
    Gain,
    Held,
    NoSearch,
    Outcome,
)
from rlplan.results.measurement import MeasuredRun
from rlplan.results.stored import write_plan
from rlplan.simulator.simulate import simulate
from rlplan.units import show_seconds

LEDGER_FILE: Final = "adapting.jsonl"
# What the ledger says of logs and frameworks, where advice on other runs names theirs.
LOG, FRAMEWORK = "metrics.jsonl", "rlplan"
DRY_RUN: Final = "dry run: nothing is moved"
LATER_REPLICAS: Final = "it pays with the replicas that are wanted later: with those of now an iteration would be {} longer"
# Metric of an iteration: replicas that generate at its end, where they come and go.
REPLICAS: Final = "replicas"
LATER: Final = "it pays once responses are longer: now an iteration would be {} longer"
PLANNED: Final = "by {} in mode {}, iterations are forecast to be shorter once {:,} are done, by the lengths that the job plans"
# Beside the ledger: the plans that a run does not try again, numbered from 1.
BARRED_PLAN: Final = "plan-barred-{:06d}.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptOptions:
    """Say how a run adapts; the numbers are those of `rlplan advise`.

    Attributes:
        dry_run: Whether it only says what it would do.
        window: Newest iterations that medians are over, at most.
        warmup: First iterations of a plan that are left out.
        every: Iterations between two looks at plans, at least.
        search_seconds: When a search stops with the best plan so far.
    """

    dry_run: bool = False
    window: int = 20
    warmup: int = 1
    every: int = 10
    search_seconds: float = SEARCH_SECONDS


class Searching(Protocol):
    """Search beside a run: one request at a time."""

    def ask(self, request: Request) -> None:
        """Begin a search."""

    def answer(self) -> Proposals | None:
        """Return what was found, once; None as long as there is nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Hold a move that was decided: what was measured before it, and what it is to bring."""

    decision: Decision
    before: MeasuredRun
    found: Proposals
    plan: Plan
    is_back: bool = False

    @property
    def left(self) -> Plan:
        """Return the plan of before, with all replicas that it has at most."""
        return self.found.request.running


class MoveAdapter:
    """Decide on a run's moves.

    Args:
        facts: What operations take.
        ledger: File of decisions and outcomes.
        searching: Searches beside the run.
        refuses: Returns why the executor does not carry a plan out; empty where it does.
        words: Returns a line of the ledger for people.
        devices: Of replicas that come and go, or between which numbers of them forecasts choose; None: all of a plan's stay.
    """

    def __init__(
        self,
        facts: Facts,
        ledger: Path,
        options: AdaptOptions,
        searching: Searching,
        refuses: Callable[[Plan], str],
        words: Callable[[AdviceLine], str],
        devices: ReplicaDevices | ReplicaChoice | None = None,
    ) -> None:
        self._facts, self._ledger, self._options = facts, ledger, options
        self._searching, self._refuses, self._words = searching, refuses, words
        self._devices = devices
        # Of a run whose replicas come and go: its plan, and by how many of them generate the plan with as many.
        self._whole: Plan | None = None
        self._with = dict[int, Plan]()
        self._window = Window(options.window, options.warmup)
        self._pace = Pace(options.every)
        self._held: Held | None = None  # as the ledger last has it
        self._departures: tuple[Departure, ...] = ()  # of the search that was asked for last
        self._staleness: float | None = None
        self._barred: list[Plan] | None = None  # not read yet
        self._decided: Move | None = None  # and not judged yet
        self._left: list[Move] = []  # with what was measured of the plans that this run has left
        # Of the search that is under way: after which iteration it began, and when.
        self._asked: DoneIteration | None = None
        self._begun_seconds, self._has_moved = 0.0, False
        self._checkpoint_seconds: float | None = None
        self._said: list[str] = []

    def begun(self, plan: Plan, done: int, seconds: float) -> None:
        """Take note that iterations begin by a plan, which took so long to come; of a new run, its ledger is new."""
        if self._staleness is None:
            self._staleness = most_staleness(plan)
            if not done:
                self._ledger.unlink(missing_ok=True)
                for file in self._barred_files:
                    file.unlink(missing_ok=True)
                self._barred = []
            else:
                self._say_unjudged()
        self._window.clear()
        self._whole = plan
        self._with.clear()
        self._begun_seconds = seconds
        moved = self._decided
        self._has_moved = moved is not None and same_layout(plan, moved.plan)
        self._pace.clear(done, _known_behind(moved) if moved and self._has_moved else ())
        if moved is not None and self._has_moved and not moved.is_back:
            self._left.append(moved)
        if moved is not None and (not self._has_moved or moved.is_back):
            self._decided = None  # it was not made, or nothing is to be judged of it

    def _say_unjudged(self) -> None:
        """Say of which move nothing will be judged, since what was measured before it ended with the process."""
        try:
            lines = read_ledger(self._ledger)
        except UserError:
            return  # as `barred` says
        last = next((each for each in reversed(lines) if not _is_dry(each)), None)
        if isinstance(last, Decision) and last.answer == "change":
            self._said.append(
                f"the move that was decided after step {last.step} is not judged, and kept where it was made: what was measured "
                "before it ended with the process"
            )

    def after(self, iteration: DoneIteration) -> Adaptation:
        """Return what the run does after an iteration."""
        if self._devices is not None:
            iteration = self._as_generated(iteration)
        self._window.note(iteration)
        if iteration.checkpoint_seconds is not None:
            self._checkpoint_seconds = iteration.checkpoint_seconds
        found = self._searching.answer() if self._asked is not None else None
        if found is not None:
            self._asked = None
            self._pace.note(found, is_present=found.request.measured.plan == iteration.plan)
        answer = AS_IT_IS
        if self._window.is_enough:
            if self._decided is not None:
                answer = self._judge(self._decided, iteration)
            elif found is not None and found.request.measured.plan == iteration.plan:
                answer = self._decide(found, iteration)
            if answer.plan is None:
                self._ask(iteration)
        return replace(answer, said=self._told())

    def _as_generated(self, iteration: DoneIteration) -> DoneIteration:
        """Return an iteration by the plan with as many replicas as generated at its end."""
        self._whole, count = iteration.plan, int(iteration.metrics[REPLICAS])
        if count not in self._with:
            self._with[count] = with_replicas(iteration.plan, count)
        return replace(iteration, plan=self._with[count])

    def _coming(self, iteration: DoneIteration) -> Coming | None:
        """Return how many devices replicas have when, where they come and go; where forecasts choose, as is expected behind an iteration."""
        devices = self._devices
        if devices is None:
            return None
        assert self._whole is not None, "a run's iterations are by a plan"
        if isinstance(devices, ReplicaChoice):
            count, done = iteration.plan.tasks[GENERATE].dp, iteration.span.iteration + 1
            devices = expected_devices(devices, self._whole, count, done, iteration.iterations)
        return Coming(devices=devices, plan=self._whole)

    def in_layout_of(self, plan: Plan, other: Plan) -> Plan:
        """Return a plan's job in another plan's layout."""
        return in_layout_of(plan, other)

    def failed(
        self, plan: Plan, done: int, reason: str, *, for_good: bool = True
    ) -> tuple[str, ...]:
        """Take note that a plan did no iteration after so many, and is not to be tried again; return what is said.

        Args:
            for_good: Whether a run that is resumed does not try it again either: it may have been its own doing.
        """
        self._decided = None
        if for_good:
            self._bar(plan, max(0, done - 1), f"it did no iteration: {reason}")
        else:
            self.barred.append(plan)
            self._said.append(
                "that was not that plan's doing: it is not tried again before a resume"
            )
        return self._told()

    def _told(self) -> tuple[str, ...]:
        """Return what is to be said, once."""
        said, self._said = tuple(self._said), []
        return said

    @property
    def barred(self) -> list[Plan]:
        """Return the plans that this run does not try again, those that its ledger names included."""
        if self._barred is None:
            self._barred, lines = [], list[Barred]()
            unknown = "what this run does not try again is not known: "
            try:
                lines += (each for each in read_ledger(self._ledger) if isinstance(each, Barred))
            except UserError as error:
                self._said.append(f"{unknown}{error}")
            for each in lines:
                try:
                    self._barred.append(read_yaml(Plan, self._ledger.parent / each.plan))
                except UserError as error:
                    self._said.append(f"{unknown}{error}")
        return self._barred

    @property
    def _barred_files(self) -> list[Path]:
        """Return the files of plans that are not tried again, in the order of their numbers."""
        return sorted(self._ledger.parent.glob(BARRED_PLAN.replace("{:06d}", "*")))

    def _bar(self, plan: Plan, step: int, reason: str) -> None:
        """Do not try a plan again in this run, nor where it is resumed."""
        self.barred.append(plan)
        known = [file.name for file in self._barred_files]
        name = next(each for each in map(BARRED_PLAN.format, count(1)) if each not in known)
        try:
            write_plan(self._ledger.parent / name, plan)
        except UserError as error:
            self._said.append(f"not kept for a resumed run: {error}")
            return
        self._write(Barred(step=step, reason=reason, plan=name))

    @property
    def move_seconds(self) -> float:
        """Return what a move is taken to cost: as long as the one before took or, before the first, as the run's own start.

        With the last checkpoint where there was none in it, and what the first iteration took longer than others.
        """
        seconds = self._begun_seconds + self._window.first_took_longer_seconds
        return seconds if self._has_moved else seconds + (self._checkpoint_seconds or 0.0)

    def _ask(self, iteration: DoneIteration) -> None:
        """Let plans be looked at where that is worth what it takes, and write down why not, once."""
        if self._asked is not None:
            self._say_unanswered(self._asked, iteration)
            return
        levels, number = self._pace.levels, iteration.span.iteration + 1
        if levels is None and self._has_moved:  # behind a move that was just judged
            self._pace.skip(self._window, number)
            return
        due = self._pace.after(self._window, iteration, lambda: self.move_seconds)
        if isinstance(due, Wait):
            self._hold(due, iteration)
        if not isinstance(due, Look):
            return
        self._held = None
        assert self._pace.levels is not None, "they were taken for this look"
        self._departures = departures_of(levels or {}, self._pace.levels, self._pace.least_change)
        assert self._staleness is not None
        self._asked = iteration
        self._searching.ask(
            Request(
                measured=self._window.measured(),
                step_seconds=self._window.step_seconds,
                iterations=iteration.iterations,
                staleness=self._staleness,
                barred=tuple(self.barred),
                known=due.known,
                search_seconds=self._options.search_seconds,
                has_planned_lengths=self._window.has_planned_lengths,
                coming=self._coming(iteration),
            )
        )

    def _say_unanswered(self, asked: DoneIteration, iteration: DoneIteration) -> None:
        """Write down, once, that a search has not answered for as many iterations as lie between two, or before the last one."""
        since = iteration.span.iteration - asked.span.iteration
        if since < self._options.every and iteration.left:
            return
        seconds = show_seconds(iteration.span.end_seconds - asked.span.end_seconds)
        why = (
            "the run ends before it does"
            if since < self._options.every
            else "it is a large one, or other work keeps this machine's cores busy"
        )
        words = f"the search that began after step {asked.span.iteration:,} has not answered in {seconds}: {why}"
        self._hold(Wait(held="no answer", words=words), iteration)

    def _hold(self, wait: Wait, iteration: DoneIteration) -> None:
        """Write down why no search is made, where that is another reason than the ledger has."""
        if wait.held != self._held:
            self._held = wait.held
            self._write(NoSearch(step=iteration.span.iteration, held=wait.held, reason=wait.words))

    def _decide(self, found: Proposals, iteration: DoneIteration) -> Adaptation:
        """Return whether the run moves to what a search found, and write it down."""
        best, notes = self._best(found)
        if found.forecast_seconds is None:
            self._said += notes
            return AS_IT_IS
        step, left, cost = iteration.span.iteration, iteration.left, self.move_seconds
        gain = None if best is None else best.gain
        answer, deadline = answer_of(None if best is None else best.gain_left, cost, step, left)
        request = found.request
        if best is not None and (kept := self._kept_from(best, request, pays=answer == "change")):
            notes += kept
            answer = "keep" if answer == "change" else answer
        moves = answer == "change" and not self._options.dry_run
        decision = Decision(
            step=step,
            time_seconds=iteration.span.end_seconds,
            log=LOG,
            framework=FRAMEWORK,
            steps=len(request.measured.trace.iterations),
            response_tokens=request.measured.mean_response_tokens,
            measured_seconds=request.step_seconds,
            forecast_seconds=found.forecast_seconds,
            answer=answer,
            changes=() if best is None else plan_changes(request.running, best.plan),
            changed_seconds=None if best is None else best.seconds,
            gain=gain,
            gain_left=None if best is None or best.gain_left == gain else best.gain_left,
            steps_left=left,
            restart_seconds=cost,
            deadline_step=deadline,
            departures=self._departures,
            notes=(
                *notes,
                self._cost_words(),
                self._pace.spent_words,
                *((DRY_RUN,) if answer == "change" and not moves else ()),
            ),
        )
        self._write(decision)
        if not moves or best is None or gain is None:
            return AS_IT_IS
        self._decided = Move(
            decision=decision, before=request.measured, found=found, plan=best.plan
        )
        brings = best.gain_left
        low, high = show_seconds(brings.p10_seconds), show_seconds(brings.p90_seconds)
        return Adaptation(
            plan=best.plan,
            reason=f"an iteration is forecast to be {low} to {high} shorter",
            most_seconds=brings.p90_seconds * left,
        )

    def _kept_from(self, best: Proposal, request: Request, *, pays: bool) -> list[str]:
        """Return why a plan is not moved to now though it may pay; nothing where nothing keeps the run from it.

        Args:
            pays: Whether it would repay a move over all iterations that are left.
        """
        if best.gain.p50_seconds <= 0:
            return _later_notes(best, request, pays=pays)
        why = self._lacks_table(best.plan) if pays else ""
        return [f"not carried out here: {why}"] if why else []

    def _lacks_table(self, plan: Plan) -> str:
        """Return why forecasts choose no number of a plan's replicas, where they do; the run waits for these, once for each plan that it moves to."""
        if not isinstance(self._devices, ReplicaChoice):
            return ""
        try:
            self._devices.table_of(plan)
        except UserError as error:
            self.barred.append(plan)
            return str(error)
        return ""

    def _best(self, found: Proposals) -> tuple[Proposal | None, list[str]]:
        """Return the plan that surely gains most of those that the executor carries out, and what is said of the others."""
        notes, best = list(found.notes), None
        for each in found.plans:
            if any(same_layout(each.plan, other) for other in self.barred):
                continue  # since the search began
            if why := self._refuses(each.plan):
                notes.append(f"not carried out here: {why}")
                continue
            known, words = self._as_measured(each, found)
            if best is None or known.gain_left.p10_seconds > best[0].gain_left.p10_seconds:
                best = known, words
        return (None, notes) if best is None else (best[0], notes + best[1])

    def _as_measured(self, each: Proposal, found: Proposals) -> tuple[Proposal, list[str]]:
        """Return a proposal with what its plan took in this run, where it has run by that, in place of its forecast; and a note.

        At other lengths it takes that times the ratio of its forecasts. So no run moves to and fro between plans that are as
        fast as each other, each of which is forecast to be faster than what is measured.
        """
        left = [move for move in self._left if same_layout(move.left, each.plan)]
        if not left:
            return each, []
        before, measured = left[-1].before, left[-1].decision.measured_seconds
        facts = self._facts.with_calibration(found.site)
        try:
            now, seconds = at_present_lengths(found.request, facts)
            later = simulate(beside(now, each.plan, found.request.coming), facts).iteration_seconds
            earlier = simulate(at_run_lengths(before.plan, before), facts).iteration_seconds
        except UserError:
            return each, []  # no lengths that the job can have: it stays as it is forecast
        expected = measured * later / earlier
        width = median_width((before, later / earlier), (found.request.measured, 1.0))
        shift = seconds - expected - each.gain.p50_seconds
        gain, gain_left = (
            _wider(_shifted(known, shift), width) for known in (each.gain, each.gain_left)
        )
        words = f"{each.plan.placement} in mode {each.plan.mode} took {show_seconds(measured)} in this run, times {later / earlier:.3f} for the lengths since"
        return replace(each, seconds=expected, gain=gain, gain_left=gain_left), [words]

    def _cost_words(self) -> str:
        if self._has_moved:
            return "a move is taken to cost what the last one took"
        checkpoint = (
            "a checkpoint's seconds are not known yet, and not counted"
            if self._checkpoint_seconds is None
            else "with the last checkpoint"
        )
        return f"a move is taken to cost what this run's own start took beside processes that go on, {checkpoint}"

    def _judge(self, move: Move, iteration: DoneIteration) -> Adaptation:
        """Return whether the run takes a move back, and write down what came of it."""
        self._decided = None
        after = self._window.measured()
        assert move.decision.gain is not None, "a move has a gain"
        try:
            expected, gain = self._since(move, after)
        except UserError as error:  # then they are judged as they were measured
            if (
                self._devices is not None
            ):  # with other replicas they say nothing: it waits for a number that has a forecast
                self._decided = move
                return AS_IT_IS
            expected, gain = move.decision.measured_seconds, move.decision.gain
            self._said.append(f"forecasts at the lengths since failed: {error}")
        now, left, cost = self._window.step_seconds, iteration.left, self.move_seconds
        gained, notes = expected - now, []
        if expected != move.decision.measured_seconds:
            ratio = expected / move.decision.measured_seconds
            notes.append(
                f"{show_seconds(move.decision.measured_seconds)} was measured before, times {ratio:.3f} for the lengths since"
            )
        goes_back = gained < gain.p10_seconds and -gained * left > cost
        if gained < gain.p10_seconds:
            notes.append(self._short_words(gained, left, cost, goes_back=goes_back))
        outcome = Outcome(
            step=iteration.span.iteration,
            time_seconds=iteration.span.end_seconds,
            decision_step=move.decision.step,
            steps=len(after.trace.iterations),
            before_seconds=expected,
            after_seconds=now,
            gain=gain,
            response_tokens=(
                move.before.mean_response_tokens,
                after.mean_response_tokens,
            ),
            restart_seconds=cost,
            notes=tuple(notes),
        )
        self._write(outcome)
        if not goes_back:
            return AS_IT_IS
        self._bar(move.plan, iteration.span.iteration, notes[-1])
        back = replace(move, plan=move.left, is_back=True)
        self._decided = back
        return Adaptation(plan=back.plan, reason=notes[-1])

    def _since(self, move: Move, after: MeasuredRun) -> tuple[float, Gain]:
        """Return what iterations of the plan before would take at the lengths since the move, and what it was to gain there.

        What was measured before, times the ratio of the forecasts of the plan before at both lengths; and what was decided on, with
        what the forecast gains differ by at both. That was decided on as a mean over all iterations that were left; what is
        measured is of few, before the move and behind it, in which there is chance: in their lengths, and in what a machine takes.
        """
        facts, before = self._facts.with_calibration(move.found.site), move.before
        left = max(1, move.decision.steps_left)
        measured_of = min(len(run.trace.iterations) for run in (before, after))
        coming, then_plan = move.found.request.coming, before.plan
        if coming is not None:  # by as many devices as generate now
            then_plan = on_devices(move.left, generating_gpus(after.plan))
        first, second = (
            at_run_lengths(plan, replace(run, plan=plan))
            for plan, run in ((before.plan, before), (then_plan, after))
        )
        decided, measured = move.decision.gain, move.decision.measured_seconds
        assert decided is not None, "a move has a gain"
        earlier, later = (simulate(each, facts).iteration_seconds for each in (first, second))
        expected = measured * (later / earlier)

        def gain_at(way: Plan, seconds: float, mean_of: int) -> Gain:
            """Return what the move gains of an iteration that takes so long by the plan before, at that plan's lengths."""
            ways = (way, beside(way, move.plan, coming))
            now, then = (with_forecasts([each], facts, mean_of) for each in ways)
            return gains_of(now, then, seconds, facts)[0]

        then = gain_at(*at_present_lengths(move.found.request, facts), left)
        since = gain_at(second, expected, measured_of)
        ends = (
            getattr(decided, name) + getattr(since, name) - getattr(then, name) for name in ENDS
        )
        gain = Gain(**dict(zip(ENDS, ends, strict=True)))
        return expected, _wider(gain, median_width((before, expected / measured), (after, 1.0)))

    @staticmethod
    def _short_words(gained: float, left: int, cost: float, *, goes_back: bool) -> str:
        """Return what is said of a move that brought less than its low end."""
        if goes_back:
            return (
                f"taken back: iterations are {show_seconds(-gained)} longer than by the plan before, which over {left} that are "
                f"left is more than {show_seconds(cost)} for the way back"
            )
        if gained > 0:
            return f"less than its low end, and kept: iterations are {show_seconds(gained)} shorter than by the plan before"
        return (
            f"less than its low end, and kept: the way back takes {show_seconds(cost)}, more than {left} iterations that are "
            f"{show_seconds(-gained)} longer"
        )

    def _write(self, line: AdviceLine) -> None:
        """Write a line and say it; a run does not end for a ledger that cannot be written."""
        try:
            write_line(self._ledger, line)
        except UserError as error:
            self._said.append(f"not written to the ledger: {error}")
        self._said.append(self._words(line))


def _known_behind(move: Move) -> tuple[Plan, ...]:
    """Return the plans that are known behind a move: that of before, and others that were looked at for it."""
    others = (each for each in move.found.known if not same_layout(each, move.plan))
    return (move.left, *others) if not move.is_back else tuple(others)


def _shifted(gain: Gain, seconds: float) -> Gain:
    """Return a gain that is larger by so many seconds."""
    return replace(gain, **{name: getattr(gain, name) + seconds for name in ENDS})


def _wider(gain: Gain, width: float) -> Gain:
    """Return a gain whose ends also hold an error of what it is laid beside, independent of its own.

    Args:
        width: From the middle to the 90th percentile of that error, in seconds.
    """
    low, high = (
        hypot(gain.p50_seconds - gain.p10_seconds, width),
        hypot(gain.p90_seconds - gain.p50_seconds, width),
    )
    return replace(gain, p10_seconds=gain.p50_seconds - low, p90_seconds=gain.p50_seconds + high)


def _later_notes(best: Proposal, request: Request, *, pays: bool) -> list[str]:
    """Return what is said of a plan by which iterations would be longer now.

    Args:
        pays: Whether it would repay a move over all iterations that are left.
    """
    later = LATER if request.coming is None else LATER_REPLICAS
    notes = [later.format(show_seconds(-best.gain.p50_seconds))] if pays else []
    if best.better_after is not None:
        notes.append(PLANNED.format(best.plan.placement, best.plan.mode, best.better_after))
    return notes


def _is_dry(line: AdviceLine) -> bool:
    """Tell whether a line of a ledger says of no move: a decision that moved nothing, whatever it answered, or why none is looked for."""
    if isinstance(line, NoSearch):
        return True
    return isinstance(line, Decision) and (line.answer != "change" or DRY_RUN in line.notes)
