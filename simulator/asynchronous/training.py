"""Preparation and updates as SimPy processes: pieces of an iteration go through its works as their samples end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import simpy

from rlplan.simulator.asynchronous.cores import Steps, begin
from rlplan.simulator.asynchronous.pools import PieceWork, Pools
from rlplan.simulator.asynchronous.samples import SampleQueue
from rlplan.simulator.asynchronous.setting import StreamSetting
from rlplan.simulator.timeline.agenda import Entry

# Calls of storage actors before each call of a task that takes its samples from a transfer queue: what it needs is
# written, and read.
QUEUE_CALLS = 2


@dataclass(frozen=True, slots=True)
class Piece:
    """Hold a piece of an iteration.

    Attributes:
        share: Of the tokens of an iteration of mean samples.
        learnt: Share of these that is learnt from behind it: its own and that of pieces before it.
        steps: Share of the iteration's optimizer steps that this takes.
    """

    iteration: int
    number: int
    share: float
    learnt: float
    steps: float


class Training:
    """Take an iteration's samples piece by piece, one iteration after another.

    A piece's samples are taken when the update on the piece before begins, so that preparation on other pools
    goes on meanwhile. Pools take what waits for them by (iteration, piece, place in their order); beside preparation
    that goes on by itself, in the order in which it came.

    Args:
        order: By pool, names in the order in which they get the pool when several wait.
        batch_tokens: Of the units that an iteration of mean samples learns from.
        prepared: Whether samples come prepared.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        works: Sequence[PieceWork],
        order: Mapping[str, Sequence[str]],
        queue: SampleQueue,
        pools: Pools,
        batch_tokens: float,
        *,
        prepared: bool = False,
    ) -> None:
        self.environment, self.works, self.queue, self.pools = environment, works, queue, pools
        self.batch_tokens, self.prepared = batch_tokens, prepared
        self.places = {
            each.entry.work.key: (_place(each.entry, order), place)
            for place, each in enumerate(works)
        }

    def iteration(self, number: int, setting: StreamSetting) -> Steps:
        """Run one iteration, from its first samples to its last update."""
        pieces: list[simpy.Event] = []
        updates = sum(setting.piece_updates)
        learnt = steps = 0.0
        for place, count in enumerate(setting.pieces):
            tokens = yield from self.queue.collect(count, number)
            if place == len(setting.pieces) - 1:
                self.queue.drop_due(number)
            share = tokens / self.batch_tokens
            learnt += share
            steps += setting.piece_updates[place] / updates
            piece = Piece(number, len(pieces), share, 0.0, 0.0)
            if not setting.learns or setting.learns[place]:
                piece = Piece(number, len(pieces), share, learnt, steps)
                learnt = steps = 0.0
            learning = self.environment.event()
            pieces.append(self._start(piece, learning))
            yield learning
        yield self.environment.all_of(pieces)

    def _start(self, piece: Piece, learning: simpy.Event) -> simpy.Event:
        done = {each.entry.work.key: self.environment.event() for each in self.works}
        for each in self.works:
            begin(self._run(each, piece, done, learning))
        return self.environment.all_of(done.values())

    def _run(
        self, each: PieceWork, piece: Piece, done: Mapping[str, simpy.Event], learning: simpy.Event
    ) -> Steps:
        def begins() -> None:
            if each.learns and not learning.triggered:
                learning.succeed()

        key = each.entry.work.key
        if each.together and not piece.learnt:  # a piece after it will be learnt from with it
            begins()
            done[key].succeed()
            return
        yield self.environment.all_of([done[other] for other in each.after])
        calls_seconds = self._calls_seconds(each)
        if calls_seconds:
            yield self.pools.cores.work(calls_seconds)
        share = piece.learnt if each.together else piece.share
        seconds = each.sample_seconds * share + each.step_seconds * piece.steps
        if not self.prepared:
            seconds += each.call_seconds
        rank = () if self.prepared else (piece.iteration, piece.number, *self.places[key])
        yield from self.pools.work(each.entry, seconds, piece.iteration, rank, begins)
        done[key].succeed()

    def _calls_seconds(self, each: PieceWork) -> float:
        """Return what calls before a work take that its pool does not wait for.

        What learns from prepared samples is sent together: its samples are read once, and the works that follow the
        first are there when it ends.
        """
        if not self.prepared:
            return QUEUE_CALLS * each.queue_seconds
        return 0.0 if each.after else each.queue_seconds + each.call_seconds


def _place(entry: Entry, order: Mapping[str, Sequence[str]]) -> int:
    """Return a work's place in the order of its pool; what is not listed comes first."""
    listed = list(order.get(entry.work.pool, ()))
    return listed.index(entry.work.name) + 1 if entry.work.name in listed else 0
