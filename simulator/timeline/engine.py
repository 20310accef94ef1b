"""The playing of works on resources in simulated time (SimPy): list scheduling, to the letter.

A work waits for its parents, then for all the resources that it holds, then takes its seconds.
Whenever something ends, the waiting works are gone through by (iteration, place in the order of
their pool, place in the dataflow), and each whose resources are all free starts. Nothing else is
decided here, so the same works, seconds and order give the same trace on any machine.

Synchronous iterations follow each other. Overlapping ones are all there from the start, and what
they wait for of earlier iterations alone keeps them apart.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import simpy

from rlplan.trace import Activity, IterationSpan, Span, Trace, sorted_spans

Key = tuple[int, int, int]
Steps = Generator[simpy.Event, object, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Describe one piece of an iteration's work.

    Attributes:
        key: Unique within the iteration.
        name: What its spans are called.
        pool: Where its spans are drawn, and whose order it follows.
        holds: Resources (pools, links) that it has to itself while it runs.
        after: Keys of the works that it waits for.
        earlier: Keys of works of earlier iterations that it waits for, each with how many
            iterations earlier; used where iterations overlap.
        ahead: Iterations by which it is ranked ahead of its own when several wait for a pool.
    """

    key: str
    name: str
    pool: str
    holds: tuple[str, ...]
    after: tuple[str, ...] = ()
    earlier: tuple[tuple[str, int], ...] = ()
    ahead: int = 0
    activity: Activity = "task"

    def span(self, iteration: int, start_seconds: float, end_seconds: float) -> Span:
        """Return when it ran."""
        return Span(
            name=self.name,
            pool=self.pool,
            iteration=iteration,
            start_seconds=start_seconds,
            end_seconds=end_seconds,
            activity=self.activity,
        )


def play(
    works: Sequence[Work],
    seconds: Mapping[str, float],
    order: Mapping[str, Sequence[str]],
    *,
    iterations: int = 1,
    overlapping: bool = False,
) -> Trace:
    """Return the spans in seconds of iterations, each from the end of the one before to its own.

    Args:
        seconds: By key, how long each work takes.
        order: By pool, names in the order in which they get the pool when several wait; names
            that are not listed come first, as what prepares a pool's listed tasks does.
        overlapping: Whether an iteration may begin before the last one ended.
    """
    floor = _Floor(works, seconds, order)
    run = floor.overlapping_iterations if overlapping else floor.iterations
    main = floor.environment.process(run(iterations))
    floor.environment.run()
    assert main.triggered, "the works wait for each other in a circle"
    return Trace(
        origin="simulated", spans=sorted_spans(floor.spans), iterations=tuple(floor.finished)
    )


class _Floor:
    """Hold pools and links as SimPy resources, and ask for them on behalf of waiting works.

    A SimPy resource goes to whoever asks first within an instant, and a work that asked for several one by
    one would keep others from those that it has already. So the works' requests are made for them when
    the instant has settled, the best placed first, and only where all that a work holds is free.
    """

    def __init__(
        self,
        works: Sequence[Work],
        seconds: Mapping[str, float],
        order: Mapping[str, Sequence[str]],
    ) -> None:
        self.works, self.seconds = works, seconds
        self.environment = simpy.Environment()
        self.places = [
            (list(order.get(work.pool, ())).index(work.name) + 1)
            if work.name in order.get(work.pool, ())
            else 0
            for work in works
        ]
        self.spans: list[Span] = []
        self.finished: list[IterationSpan] = []
        self.done: dict[int, dict[str, simpy.Event]] = {}
        names = dict.fromkeys(name for work in works for name in work.holds)
        self.resources = {name: simpy.Resource(self.environment) for name in names}
        self.waiting: dict[Key, tuple[Work, simpy.Event]] = {}
        self.changed = self.environment.event()
        self.environment.process(self._grant_forever())

    def iterations(self, count: int) -> Steps:
        """Run iterations one after another."""
        for iteration in range(count):
            yield self._start(iteration)
            self._finish(iteration)

    def overlapping_iterations(self, count: int) -> Steps:
        """Run iterations that only wait for what their works name of earlier ones."""
        everything = [self._start(iteration) for iteration in range(count)]
        for iteration, ended in enumerate(everything):
            yield ended
            self._finish(iteration)

    def _start(self, iteration: int) -> simpy.Event:
        """Let an iteration's works wait for their turns; return what happens when all have ended."""
        self.done[iteration] = {work.key: self.environment.event() for work in self.works}
        for index, work in enumerate(self.works):
            key = (iteration - work.ahead, self.places[index], index)
            self.environment.process(self._run(work, iteration, key))
        return self.environment.all_of(self.done[iteration].values())

    def _finish(self, iteration: int) -> None:
        self.finished.append(
            IterationSpan(
                iteration=iteration,
                start_seconds=self.finished[-1].end_seconds if self.finished else 0.0,
                end_seconds=self.environment.now,
            )
        )

    def _run(self, work: Work, iteration: int, key: Key) -> Steps:
        done = self.done[iteration]
        yield self.environment.all_of(
            [done[parent] for parent in work.after]
            + [
                self.done[iteration - lag][parent]
                for parent, lag in work.earlier
                if iteration >= lag
            ]
        )
        turn = self.environment.event()
        self.waiting[key] = (work, turn)
        self._note_change()
        requests = yield turn
        assert isinstance(requests, list), "a work's turn comes with its requests"
        start_seconds = self.environment.now
        yield self.environment.timeout(self.seconds[work.key])
        self.spans.append(work.span(iteration, start_seconds, self.environment.now))
        for request in requests:
            request.resource.release(request)
        self._note_change()
        done[work.key].succeed()

    def _note_change(self) -> None:
        if not self.changed.triggered:
            self.changed.succeed()

    def _grant_forever(self) -> Steps:
        while True:
            yield self.changed
            while self.environment.peek() <= self.environment.now:
                yield self.environment.timeout(0)
            self.changed = self.environment.event()
            for key in sorted(self.waiting):
                work, turn = self.waiting[key]
                held = [self.resources[name] for name in work.holds]
                if not any(resource.count for resource in held):
                    del self.waiting[key]
                    turn.succeed([resource.request() for resource in held])
