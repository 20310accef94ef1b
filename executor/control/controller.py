"""The single controller: it begins and ends iterations, keeps what lasts between them, and sees references only.

What is sent when is the plan's feed (`rlplan.executor.control.feeds`), how a call is sent the dispatcher.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task
from rlplan.executor.control.dispatcher import Dispatcher
from rlplan.executor.control.feeds.feed import EndedIteration, Feed, SentIteration
from rlplan.executor.control.feeds.sample_stream import SampleStream
from rlplan.executor.control.feeds.whole_batches import WholeBatches
from rlplan.executor.data.batches import Columns
from rlplan.executor.learning.multiplier import next_state
from rlplan.executor.workers.pools import WorkerGroup
from rlplan.plan import Plan
from rlplan.trace import IterationSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredIteration(EndedIteration):
    """Hold what an iteration measured: how long it took, its spans, and by task the metrics of all its ranks.

    Attributes:
        state: What the algorithm went into it with, by name.
    """

    span: IterationSpan
    state: Mapping[str, float] = field(default_factory=dict)


class Controller:
    """Run iterations of a plan on worker groups, one after another.

    Args:
        groups: By pool.
        prompts: Returns the prompts of a batch as columns, and the texts that are mixed in.

    Attributes:
        dispatcher: Sends the calls of tasks.
        feed: Says what is sent when, as the plan's flow has it.
        origin_seconds: From when spans are counted, on the host's clock; None: from the first
            iteration that is sent.
    """

    def __init__(
        self,
        plan: Plan,
        tasks: tuple[Task, ...],
        groups: Mapping[str, WorkerGroup],
        prompts: Callable[[int], Columns],
    ) -> None:
        self._job, self._algorithm = plan.job, load_algorithm(plan.job.algorithm)
        self.dispatcher = Dispatcher(plan, tasks, groups)
        made_of = (plan, self.dispatcher, prompts)
        self.feed: Feed = SampleStream(*made_of) if plan.flow.by_sample else WholeBatches(*made_of)
        self.origin_seconds: float | None = None

    @property
    def state(self) -> dict[str, float]:
        """Return what the algorithm carries from iteration to iteration, by name; it belongs into a checkpoint."""
        return self.dispatcher.state

    @state.setter
    def state(self, state: Mapping[str, float]) -> None:
        self.dispatcher.state = dict(state)

    @property
    def generator_is_ready(self) -> bool:
        """Tell whether what generates has the weights for the next batch already, from a checkpoint."""
        return self.dispatcher.generator_is_ready

    @generator_is_ready.setter
    def generator_is_ready(self, is_ready: bool) -> None:
        self.dispatcher.generator_is_ready = is_ready

    def send(self, iteration: int, *, is_last: bool = False) -> SentIteration:
        """Begin an iteration, and send what can be sent.

        Args:
            is_last: Whether none follows, so that nothing is begun for it.
        """
        start = time.monotonic()
        if self.origin_seconds is None:
            self.origin_seconds = start
        calls, pieces = self.feed.begin(iteration, is_last=is_last)
        return SentIteration(iteration=iteration, start_seconds=start, calls=calls, pieces=pieces)

    def finish(self, running: SentIteration) -> MeasuredIteration:
        """Wait for an iteration and return what it measured."""
        origin, state = self.origin_seconds, self.state
        assert origin is not None
        ended = self.feed.end(running, origin)
        self.state = next_state(self._algorithm, self._job, state, ended.metrics)
        return MeasuredIteration(
            span=IterationSpan(
                iteration=running.iteration,
                start_seconds=running.start_seconds - origin,
                end_seconds=time.monotonic() - origin,
            ),
            spans=ended.spans,
            metrics=ended.metrics,
            state=state,
            ages=ended.ages,
            dropped=ended.dropped,
            changes=ended.changes,
        )

    def bring_newest(self, done: int) -> None:
        """Bring the weights as they are to what generates, for an evaluation.

        Args:
            done: Iterations.
        """
        if self.generator_is_ready and self.origin_seconds is None:
            self.origin_seconds = time.monotonic()  # a batch is generated before
        self.feed.bring_newest(done)

    def position(self, iteration: int) -> tuple[int, tuple[int, ...]]:
        """Return the next prompt of the stream after some iterations, and those before it that are left."""
        return self.feed.position(iteration)

    def go_on_from(self, iteration: int, next_prompt: int, left: Sequence[int]) -> None:
        """Begin where a run was after some iterations.

        Args:
            left: Prompts before the next one that were not learnt from.
        """
        self.feed.go_on_from(iteration, next_prompt, left)

    def stop(self) -> None:
        """End what the controller itself has started."""
        self.feed.stop()
