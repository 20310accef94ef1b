"""Pools of devices that works of training hold, one after another."""

import heapq
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace

import simpy

from rlplan.results.forecast import CALL
from rlplan.simulator.asynchronous.cores import Cores, Steps
from rlplan.simulator.asynchronous.meter import Meter
from rlplan.simulator.timeline.agenda import Entry
from rlplan.trace import Span

# Causes whose seconds an optimizer's step has, however many samples it learns from.
OF_STEPS = ("optimizer", "gradient reduction")
# Where works wait for a pool, the least rank gets it; of equal ones that which has waited longest.
Rank = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PieceWork:
    """Hold one work of an iteration that its pieces go through.

    Attributes:
        after: Keys of the works of the same piece that it waits for.
        learns: Whether it updates a model.
        together: Whether it waits for all that is learnt from together, as updates do.
        sample_seconds: Of a whole iteration of mean samples.
        pass_seconds: Of each time that some are prepared as they end, however few, beside their part of
            `sample_seconds`.
        step_seconds: Of all the optimizer's steps of an iteration.
        call_seconds: Of the call that each piece is; 0 where an iteration's calls are in `sample_seconds`.
        queue_seconds: Of a call that writes a piece's samples to a transfer queue, or reads them; 0 where there is none.
        share: Most responses that are prepared together as they end; 0: as many of a batch as there are.
        fixed: Whether it matters which responses are prepared together: shares of a batch in its order.
    """

    entry: Entry
    after: tuple[str, ...]
    learns: bool
    together: bool
    sample_seconds: float
    step_seconds: float
    call_seconds: float
    queue_seconds: float = 0.0
    share: int = 0
    fixed: bool = False
    pass_seconds: float = 0.0


def piece_work(
    entry: Entry,
    after: tuple[str, ...],
    *,
    learns: bool,
    together: bool = False,
    calls_each: bool = False,
    queue_seconds: float = 0.0,
    share: int = 0,
    fixed: bool = False,
) -> PieceWork:
    """Return a work of an iteration as its pieces go through it.

    Args:
        together: Whether it goes with an update, though it learns nothing itself.
        calls_each: Whether each piece is a call of its own, as this project's executor makes them.
    """
    steps = entry.cost.seconds_of(*OF_STEPS)
    call = entry.cost.seconds_of(CALL) if calls_each else 0.0
    samples = entry.cost.total.seconds - steps - call
    return PieceWork(
        entry,
        after,
        learns,
        together=learns or together,
        sample_seconds=samples,
        step_seconds=steps,
        call_seconds=call,
        queue_seconds=queue_seconds,
        share=share,
        fixed=fixed,
    )


def in_passes(work: PieceWork, pass_seconds: float, passes: int) -> PieceWork:
    """Return a work each pass of which takes so long beside what grows with its samples.

    Args:
        passes: Of a whole iteration, whose cost has `pass_seconds` as often.
    """
    samples = max(0.0, work.sample_seconds - passes * pass_seconds)
    return replace(work, sample_seconds=samples, pass_seconds=pass_seconds)


def preparing(works: Iterable[PieceWork]) -> list[PieceWork]:
    """Return the works that wait for no update and what goes with it, in their order."""
    found: dict[str, PieceWork] = {}
    for each in works:
        if not each.together and all(key in found for key in each.after):
            found[each.entry.work.key] = each
    return list(found.values())


def learning(works: Sequence[PieceWork]) -> list[PieceWork]:
    """Return the works of updates, which wait for one another, and find what else they need prepared."""
    before = {each.entry.work.key for each in preparing(works)}
    return [
        replace(each, after=tuple(key for key in each.after if key not in before))
        for each in works
        if each.entry.work.key not in before
    ]


class Line:
    """Let one work at a time hold a pool.

    A pool that is free is had at once: half of SimPy's events would be about that.
    """

    def __init__(self, environment: simpy.Environment) -> None:
        self.environment = environment
        self._held = False
        self._waiting: list[tuple[Rank, int, simpy.Event]] = []
        self._count = 0

    def ask(self, rank: Rank) -> simpy.Event | None:
        """Return what happens when the pool is had; None where it is had at once."""
        if not self._held and not self._waiting:
            self._held = True
            return None
        self._count += 1
        event = self.environment.event()
        heapq.heappush(self._waiting, (rank, self._count, event))
        self._grant()
        return event

    def release(self) -> None:
        """Let the next one have the pool, behind all that asks for it in this instant before its turn."""
        self._held = False
        if self._waiting:
            turn = self.environment.event().succeed()
            assert turn.callbacks is not None
            turn.callbacks.append(lambda _: self._grant())

    def _grant(self) -> None:
        if self._waiting and not self._held:
            self._held = True
            heapq.heappop(self._waiting)[2].succeed()


class Pools:
    """Let works hold their pools.

    Attributes:
        spans: Of all works so far.
    """

    def __init__(
        self, environment: simpy.Environment, works: Iterable[PieceWork], cores: Cores, meter: Meter
    ) -> None:
        self.environment, self.cores, self.meter = environment, cores, meter
        names = dict.fromkeys(name for each in works for name in each.entry.work.holds)
        self._lines = {name: Line(environment) for name in names}
        self.spans: list[Span] = []

    def take(
        self, names: Iterable[str], rank: Rank = ()
    ) -> Generator[simpy.Event, object, Sequence[Line]]:
        """Wait for pools, as far as works share them; return what is to be released."""
        lines = [self._lines[name] for name in sorted(names) if name in self._lines]
        for line in lines:
            turn = line.ask(rank)
            if turn is not None:
                yield turn
        return lines

    def release(self, held: Iterable[Line]) -> None:
        """Let others have pools."""
        for line in held:
            line.release()

    def work(
        self,
        entry: Entry,
        seconds: float,
        iteration: int,
        rank: Rank = (),
        begins: Callable[[], object] = lambda: None,
    ) -> Steps:
        """Wait for the pools that a work holds, and do it.

        Args:
            begins: Called when it has its pools.
        """
        work = entry.work
        lines = yield from self.take(work.holds, rank)
        begins()
        start_seconds = self.environment.now
        held = work.holds if work.activity == "task" else ()
        self.meter.work(start_seconds, entry.stage, held, 1)
        yield self.cores.work(seconds)
        self.meter.work(self.environment.now, entry.stage, held, -1)
        self.release(lines)
        self.spans.append(work.span(iteration, start_seconds, self.environment.now))
