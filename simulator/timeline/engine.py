"""The engine that plays works on resources in simulated time (SimPy).

A work waits for its parents, then for all that it holds, takes its seconds, and leaves a span. Everything that is
played is made of that. Which works there are, and when they begin, is said by the flows that run on an engine: whole
batches (`rlplan.simulator.simulate`), or samples one by one (`rlplan.simulator.asynchronous.playing`). Nothing
is drawn, so the same works, seconds and order give the same trace on any machine.

What several works want goes to the one with the least rank, by one of two rules. `ListScheduling` decides once an
instant has settled, and gives a work all that it holds together. `Queueing` gives what is free to whoever asks first,
one resource after another, and ranks only those that wait.
"""

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

import simpy
from simpy.events import EventPriority

from rlplan.trace import Activity, IterationSpan, Span, Trace, sorted_spans

Steps = Generator[simpy.Event, object, None]
# Of the works that wait for a resource, the one with the lowest rank gets it; of equal ones, the one that has waited longest.
Rank = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Describe one of the works of an iteration.

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

    def place_in(self, order: Mapping[str, Sequence[str]]) -> int:
        """Return its place in the order of its pool; what is not listed comes first."""
        listed = order.get(self.pool, ())
        return listed.index(self.name) + 1 if self.name in listed else 0


class Resources(Protocol):
    """Give pools and links to works, by a rule."""

    def take(self, names: Iterable[str], rank: Rank = ()) -> Steps:
        """Wait for resources until they are had."""

    def release(self, names: Iterable[str]) -> None:
        """Let others have resources."""


# Behind all that SimPy has happen in an instant, whose own priorities are 0 and 1.
_SETTLED = EventPriority(2)


class _InstantEnd(simpy.Event):
    """Happen at the end of an instant, after all its other events."""

    def __init__(self, environment: simpy.Environment, then: Callable[[simpy.Event], None]) -> None:
        super().__init__(environment)
        self._ok, self._value = True, None
        self.callbacks.append(then)
        environment.schedule(self, _SETTLED)


class ListScheduling:
    """Give a work all its resources at once, the lowest rank first.

    At the end of each instant the waiting works are visited in the order of their ranks, and each work whose resources
    are all free gets them. So the order of events within an instant does not matter, and no work holds one resource
    while it waits for another.
    """

    def __init__(self, environment: simpy.Environment) -> None:
        self.environment = environment
        self._held: set[str] = set()
        self._waiting: list[tuple[Rank, int, tuple[str, ...], simpy.Event]] = []
        self._count = 0
        self._settling = False

    def take(self, names: Iterable[str], rank: Rank = ()) -> Steps:
        """Wait for resources until they are had."""
        turn = self.environment.event()
        self._count += 1
        insort(self._waiting, (rank, self._count, tuple(names), turn))
        self._settle()
        yield turn

    def release(self, names: Iterable[str]) -> None:
        """Let others have resources."""
        self._held.difference_update(names)
        self._settle()

    def _settle(self) -> None:
        if not self._settling:
            self._settling = True
            _InstantEnd(self.environment, self._grant)

    def _grant(self, _: object) -> None:
        self._settling = False
        waiting, self._waiting = self._waiting, []
        for claim in waiting:
            _, _, names, turn = claim
            if self._held.isdisjoint(names):
                self._held.update(names)
                turn.succeed()
            else:
                self._waiting.append(claim)


class Queueing:
    """Give resources one after another, each to the first work that asks; works that wait for it go by rank.

    For works that arrive at any time, such as calls of a controller.
    """

    def __init__(self, environment: simpy.Environment) -> None:
        self._queues: defaultdict[str, ResourceQueue] = defaultdict(
            lambda: ResourceQueue(environment)
        )

    def take(self, names: Iterable[str], rank: Rank = ()) -> Steps:
        """Wait for resources until they are had."""
        for name in sorted(names):
            turn = self._queues[name].ask(rank)
            if turn is not None:
                yield turn

    def release(self, names: Iterable[str]) -> None:
        """Let others have resources."""
        for name in sorted(names):
            self._queues[name].release()


class ResourceQueue:
    """Give a resource to one work at a time, the lowest rank first.

    A free resource is given without an event: such events would be half of all that SimPy has to handle.
    """

    def __init__(self, environment: simpy.Environment) -> None:
        self.environment = environment
        self._held = False
        self._waiting: list[tuple[Rank, int, simpy.Event]] = []
        self._count = 0

    def ask(self, rank: Rank) -> simpy.Event | None:
        """Return what happens when the resource is had; None where it is had at once."""
        if not self._held and not self._waiting:
            self._held = True
            return None
        self._count += 1
        event = self.environment.event()
        heappush(self._waiting, (rank, self._count, event))
        self._grant()
        return event

    def release(self) -> None:
        """Let the next one have the resource, behind all that asks for it in this instant before its turn."""
        self._held = False
        if self._waiting:
            turn = self.environment.event().succeed()
            assert turn.callbacks is not None
            turn.callbacks.append(lambda _: self._grant())

    def _grant(self) -> None:
        if self._waiting and not self._held:
            self._held = True
            heappop(self._waiting)[2].succeed()


# What is left of a work when it ends, by rounding, as a share of what it takes.
ROUNDING = 1e-9


@dataclass(slots=True, eq=False)
class _CoreWork:
    left_seconds: float
    rounding_seconds: float
    done: simpy.Event


class Cores:
    """Let works go on at once, each on a core of its own, or all more slowly where there are more works than cores.

    Args:
        count: Of cores; infinite where devices have processors of their own.
    """

    def __init__(self, environment: simpy.Environment, count: float = math.inf) -> None:
        self.environment, self.count = environment, count
        self.are_own = count == math.inf  # no work waits for another one's core
        self._works: list[_CoreWork] = []
        self._seen_seconds = 0.0
        self._changes = 0

    def work(self, seconds: float) -> simpy.Event:
        """Return the end of what takes so many seconds of a core, or of a device of its own, from now on."""
        if self.are_own:
            return self.environment.timeout(seconds)
        self._go_on()
        work = _CoreWork(seconds, ROUNDING * seconds, self.environment.event())
        self._works.append(work)
        self._await_next()
        return work.done

    def _rate(self) -> float:
        return min(1.0, self.count / len(self._works)) if self._works else 1.0

    def _go_on(self) -> None:
        """Note what was done since works last came or went."""
        now = self.environment.now
        done_seconds, self._seen_seconds = (now - self._seen_seconds) * self._rate(), now
        for work in self._works:
            work.left_seconds -= done_seconds

    def _await_next(self) -> None:
        self._changes += 1
        if self._works:
            begin(self._end_next(self._changes))

    def _end_next(self, change: int) -> Steps:
        """Wait until the next work ends, unless another one comes before that."""
        least = min(work.left_seconds for work in self._works)
        yield self.environment.timeout(max(0.0, least) / self._rate())
        if change != self._changes:
            return
        self._go_on()
        # The first of them ends in any case, or rounding could keep it for ever.
        first = min(self._works, key=lambda work: work.left_seconds)
        ended = [w for w in self._works if w is first or w.left_seconds <= w.rounding_seconds]
        self._works = [work for work in self._works if work not in ended]
        for work in ended:
            work.done.succeed()
        self._await_next()


def begin(steps: Steps) -> None:
    """Take steps at once until they wait, and go on with them as what they wait for happens.

    Nobody waits for their end or interrupts them: so they need no events of their own, as a SimPy process has.
    """

    def go_on(_: object) -> None:
        for event in steps:
            if event.callbacks is not None:
                event.callbacks.append(go_on)
                return

    go_on(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRun:
    """Say how a work is done once: in an iteration, or for a piece of one.

    Attributes:
        seconds: Its duration; None for a work with nothing to do, which ends when it is started.
        after: Keys of the works, started together with it, that must end first.
        earlier: Other events that must happen first.
        call_seconds: Of the calls before it, during which it holds no resource.
        begins: Called when it has got all its resources.
    """

    work: Work
    iteration: int
    seconds: float | None
    rank: Rank
    after: Iterable[str] = ()
    earlier: Iterable[simpy.Event] = ()
    call_seconds: float = 0.0
    begins: Callable[[], object] | None = None


class Engine:
    """Play works in simulated time: who gets what, how long it takes, and what is noted of it.

    Args:
        resources: The rule by which works get what they hold.
        cores: Of the host, where devices are cores of it; infinite where they have processors of their own.
        watch: Called with the time in seconds, a work, and 1 where it begins or -1 where it ends.

    Attributes:
        spans: Of works that have ended, in that order.
        iterations: That have ended.
    """

    def __init__(
        self,
        resources: Callable[[simpy.Environment], Resources] = ListScheduling,
        *,
        cores: float = math.inf,
        watch: Callable[[float, Work, int], object] | None = None,
    ) -> None:
        self.environment = simpy.Environment()
        self.cores = Cores(self.environment, cores)
        self.spans: list[Span] = []
        self.iterations: list[IterationSpan] = []
        self.resources = resources(self.environment)
        self._watch = watch

    def run(self, steps: Steps) -> Trace:
        """Play until steps have ended; return all spans and iterations until then."""
        main = self.environment.process(steps)
        try:
            self.environment.run(until=main)
        except RuntimeError:  # of SimPy, where nothing is left to happen
            assert main.triggered, "the works wait for each other in a circle"
            raise
        return Trace(
            origin="simulated", spans=sorted_spans(self.spans), iterations=tuple(self.iterations)
        )

    def start(self, runs: Sequence[WorkRun]) -> dict[str, simpy.Event]:
        """Let works wait for their turns; return by key what happens when each has ended."""
        ended = {run.work.key: self.environment.event() for run in runs}
        for run in runs:
            begin(self._do(run, ended))
        return ended

    def _do(self, run: WorkRun, ended: Mapping[str, simpy.Event]) -> Steps:
        if run.seconds is None:
            if run.begins:
                run.begins()
            ended[run.work.key].succeed()
            return
        yield self.environment.all_of([*(ended[key] for key in run.after), *run.earlier])
        if run.call_seconds:
            yield self.cores.work(run.call_seconds)
        yield from self.work(run.work, run.seconds, run.iteration, run.rank, run.begins)
        ended[run.work.key].succeed()

    def work(
        self,
        work: Work,
        seconds: float,
        iteration: int,
        rank: Rank = (),
        begins: Callable[[], object] | None = None,
    ) -> Steps:
        """Wait for all that a work holds, and do it.

        Args:
            begins: Called when it has all that it holds.
        """
        yield from self.resources.take(work.holds, rank)
        if begins:
            begins()
        yield from self.during(work, iteration, self.cores.work(seconds))
        self.resources.release(work.holds)

    def during(self, work: Work, iteration: int, ended: simpy.Event) -> Steps:
        """Note a work that lasts from now until something happens."""
        start_seconds = self.environment.now
        if self._watch:
            self._watch(start_seconds, work, 1)
        yield ended
        if self._watch:
            self._watch(self.environment.now, work, -1)
        self.note(work, iteration, start_seconds)

    def note(self, work: Work, iteration: int, start_seconds: float) -> None:
        """Note a work that ends now."""
        self.spans.append(work.span(iteration, start_seconds, self.environment.now))

    def end_iteration(self) -> None:
        """Note that an iteration ends now, which began when the one before ended."""
        self.iterations.append(
            IterationSpan(
                iteration=len(self.iterations),
                start_seconds=self.iterations[-1].end_seconds if self.iterations else 0.0,
                end_seconds=self.environment.now,
            )
        )
