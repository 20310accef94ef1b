"""A run that may go on with another plan after an iteration: through a checkpoint, with new workers, in the same Ray.

Until the other plan is named in the run's folder, the run goes on with the one before, from the same checkpoint: whatever is
killed on the way resumes, and no sample is lost or learnt from twice.
"""

import time
from collections.abc import Mapping
from typing import Protocol

from rlplan.executor.control.controller import MeasuredIteration
from rlplan.plan import Plan
from rlplan.results.adapting import AS_IT_IS, Adaptation, DoneIteration


class Adapter(Protocol):
    """Decide where a run goes on with another plan."""

    def begun(self, plan: Plan, done: int, seconds: float) -> None:
        """Take note that iterations begin after so many, by a plan that took so long to come.

        Args:
            seconds: Since the last iteration by the plan before, its checkpoint included; at the run's start and after a
                loss, what the start of workers took.
        """

    def after(self, iteration: DoneIteration) -> Adaptation:
        """Return what the run does after an iteration."""


class Moving:
    """Keep what a run knows of its moves from plan to plan.

    Args:
        adapter: Decides on them; None: there are none.

    Attributes:
        next: What was decided and is not done yet; without a plan where the run goes on as it is.
        checkpoint_seconds: What the last checkpoint took; None without any.
    """

    def __init__(self, adapter: Adapter | None) -> None:
        self._adapter = adapter
        self._left_seconds = 0.0
        self.next = AS_IT_IS
        self.checkpoint_seconds: float | None = None

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
        self.next = AS_IT_IS

    def begin(self, plan: Plan, done: int) -> None:
        """Tell that the first iteration of a plan begins."""
        if self._adapter is not None:
            self._adapter.begun(plan, done, time.monotonic() - self._left_seconds)

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
