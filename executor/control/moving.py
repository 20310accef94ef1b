"""A run that may go on with another plan after an iteration: through a checkpoint, in the same Ray.

Until the other plan is named in the run's folder, the run goes on with the one before, from the same checkpoint: whatever is
killed on the way resumes, and no sample is lost or learnt from twice. Until the other plan has done an iteration it is on
trial: where it fails, the run goes back to the plan before.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from rlplan.dataflow import Task
from rlplan.errors import InfeasibleError, PlanError, SeveralMistakesError, UserError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.control.controller import MeasuredIteration
from rlplan.executor.control.start import START, TimeLimit
from rlplan.files.decoding import read_yaml
from rlplan.plan import Plan
from rlplan.results.advice import AS_IT_IS, Adaptation, DoneIteration
from rlplan.results.measurement import Replanned

# A plan that another one followed, after so many iterations.
PLAN_BEFORE: Final = "plan-before-{:06d}.yaml"
# What says how long a plan on trial may take to start, where no option says less.
TRIAL_START = TimeLimit("the start of workers and their models", "all that the move may gain")


class Adapter(Protocol):
    """Decide where a run goes on with another plan."""

    def begun(self, plan: Plan, done: int, seconds: float) -> None:
        """Note that the next iterations run by this plan, and how long the change to it took.

        Args:
            seconds: Since the last iteration by the plan before, its checkpoint included; at the run's start and after a
                loss, what the start of workers took, without that of processes that go on under the next plan.
        """

    def after(self, iteration: DoneIteration) -> Adaptation:
        """Return what the run does after an iteration."""

    def in_layout_of(self, plan: Plan, other: Plan) -> Plan:
        """Return a plan's job in another plan's layout."""

    def failed(self, plan: Plan, done: int, reason: str, *, for_good: bool) -> Sequence[str]:
        """Take note that a plan could not go on after so many iterations, and is not to be tried again; return what is said.

        Args:
            for_good: Whether a run that is resumed does not try it again either.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Hold what a run goes back to where the plan that it moved to does no iteration.

    Attributes:
        plan: The one before, with its tasks.
        finished: What its last iterations measured.
        replanned: Where plans followed each other, before this move.
        most_seconds: What workers of the plan on trial may take to start; None: there is no limit.
    """

    plan: Plan
    tasks: tuple[Task, ...]
    finished: tuple[MeasuredIteration, ...] = ()
    replanned: tuple[Replanned, ...] = ()
    most_seconds: float | None = None


def may_be_the_plans(error: Exception) -> bool:
    """Tell whether what a plan on trial ended with may be its own doing.

    What a user gave (prompts, a reward function, an environment) and a file that cannot be written are wrong under any plan. What
    ended workers is taken for the plan's: memory may have run out.
    """
    if isinstance(error, SeveralMistakesError):
        return any(map(may_be_the_plans, error.errors))
    return not isinstance(error, UserError) or isinstance(error, (PlanError, InfeasibleError))


def plan_began(folder: Path, done: int) -> int:
    """Return after how many iterations the plan began with which a run's folder goes on, of so many that are done."""
    names = (file.stem for file in folder.glob(PLAN_BEFORE.replace("{:06d}", "*")))
    found = (int(name.rpartition("-")[2]) for name in names)
    return max((each for each in found if each <= done), default=0)


def drop_plans(folder: Path, done: int) -> None:
    """Remove the plans that others followed later than after so many iterations."""
    for file in folder.glob(PLAN_BEFORE.replace("{:06d}", "*")):
        if file.name > PLAN_BEFORE.format(done):
            file.unlink()


class Moving:
    """Keep what a run knows of its moves from plan to plan.

    Args:
        adapter: Decides on them; None: there are none.

    Attributes:
        next: What was decided and is not done yet; without a plan where the run goes on as it is.
        checkpoint_seconds: What the last checkpoint took; None without any.
        trial: What the run goes back to where its plan fails; None where that has done an iteration.
    """

    def __init__(self, adapter: Adapter | None) -> None:
        self._adapter = adapter
        self._left_seconds = 0.0
        self.next = AS_IT_IS
        self.checkpoint_seconds: float | None = None
        self.trial: Trial | None = None

    @property
    def may_come(self) -> bool:
        """Tell whether there may be moves."""
        return self._adapter is not None

    def start(self) -> None:
        """Begin to count what the start of workers takes, but where a move counts already."""
        if self.next.plan is None:
            self._left_seconds = time.monotonic()
        self.next = AS_IT_IS

    def forget(self) -> None:
        """Go on as it is: workers were lost on the way."""
        self.next, self.trial = AS_IT_IS, None

    def resume(self, plan: Plan, folder: Path, done: int) -> str:
        """Put a plan on trial that the run's folder says another one came before, after as many iterations as are done.

        Returns:
            Why there is no way back, where the plan before cannot be read or carried out, such as one for nodes that are
            lost; else nothing.
        """
        file = folder / PLAN_BEFORE.format(done)
        if self._adapter is None or not file.exists():
            return ""
        try:
            before = self._adapter.in_layout_of(plan, read_yaml(Plan, file))
            if replace(before, made_by=plan.made_by) != plan:  # else it has gone back already
                self.trial = Trial(plan=before, tasks=check_runnable(before, str(file)))
        except UserError as error:
            return f"no way back to the plan before: {error}"
        return ""

    def start_limit(self, given_seconds: float | None) -> tuple[float | None, TimeLimit]:
        """Return how long workers may take to start, and who says so: of a plan on trial no longer than it may gain."""
        most = None if self.trial is None else self.trial.most_seconds
        if most is None or (given_seconds is not None and given_seconds <= most):
            return given_seconds, START
        return most, TRIAL_START

    def failed(self, plan: Plan, done: int, reason: str, *, for_good: bool) -> Sequence[str]:
        """Tell that a plan on trial has failed after so many iterations; return what is said of it.

        Args:
            for_good: As of `Adapter.failed`.
        """
        assert self._adapter is not None, "who moves has somebody who decides"
        self.next, self.trial = AS_IT_IS, None
        return self._adapter.failed(plan, done, reason, for_good=for_good)

    def begin(self, plan: Plan, done: int, spared_seconds: float = 0.0) -> None:
        """Tell that the first iteration of a plan begins.

        Args:
            spared_seconds: What the start took that another one will not.
        """
        if self._adapter is not None:
            seconds = time.monotonic() - self._left_seconds - spared_seconds
            self._adapter.begun(plan, done, seconds)

    def after(
        self,
        plan: Plan,
        record: MeasuredIteration,
        metrics: Mapping[str, float],
        iterations: int,
    ) -> Adaptation:
        """Return what follows an iteration of a plan, and remember it."""
        if self._adapter is None:
            return AS_IT_IS
        self._left_seconds = time.monotonic()
        done = DoneIteration(
            plan=plan,
            iterations=iterations,
            span=record.span,
            spans=tuple(record.spans),
            metrics=metrics,
            checkpoint_seconds=self.checkpoint_seconds,
        )
        self.next = self._adapter.after(done)
        return self.next
