"""Preparation and updates as SimPy processes: pieces of an iteration go through its works as their samples end."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import simpy

from rlplan.trace import Span
from simulator.asynchronous.cores import Cores
from simulator.asynchronous.meter import Meter
from simulator.asynchronous.samples import SampleQueue
from simulator.asynchronous.setting import StreamSetting
from simulator.costs.traffic import CALL
from simulator.timeline.agenda import Entry

Steps = Generator[simpy.Event, object, None]

# Causes whose seconds an optimizer's step has, however many samples it learns from.
OF_STEPS = ("optimizer", "gradient reduction")
# Calls of storage actors before each call of a task that takes its samples from a transfer queue: what it needs is
# written, and read. Each passes the columns that the task's own call passes, and is taken to cost the same.
QUEUE_CALLS = 2


@dataclass(frozen=True, slots=True)
class PieceWork:
    """Hold one work of an iteration that its pieces go through.

    Attributes:
        after: Keys of the works of the same piece that it waits for.
        learns: Whether it updates a model.
        together: Whether it waits for all that is learnt from together, as updates do.
        sample_seconds: Of a whole iteration of mean samples.
        step_seconds: Of all the optimizer's steps of an iteration.
        call_seconds: Of the call that each piece is; 0 where an iteration's calls are in `sample_seconds`.
    """

    entry: Entry
    after: tuple[str, ...]
    learns: bool
    together: bool
    sample_seconds: float
    step_seconds: float
    call_seconds: float

    @property
    def queue_seconds(self) -> float:
        """Return how long a piece's samples are on their way through the queue, in seconds."""
        return QUEUE_CALLS * self.call_seconds


def piece_work(
    entry: Entry,
    after: tuple[str, ...],
    *,
    learns: bool,
    together: bool = False,
    calls_each: bool = False,
) -> PieceWork:
    """Return a work of an iteration as its pieces go through it.

    Args:
        together: Whether it goes with an update, though it learns nothing itself.
        calls_each: Whether each piece is a call of its own, as this project's executor makes them.
    """
    steps = sum(part.seconds for name, part in entry.cost.parts if name in OF_STEPS)
    call = sum(part.seconds for name, part in entry.cost.parts if name == CALL and calls_each)
    sample_seconds = entry.cost.total.seconds - steps - call
    return PieceWork(entry, after, learns, learns or together, sample_seconds, steps, call)


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
    goes on meanwhile. Pools take what waits for them by (iteration, piece, place in their order).

    Args:
        order: By pool, names in the order in which they get the pool when several wait.
        batch_tokens: Of the units that an iteration of mean samples learns from.
        cores: That works and calls share.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        works: Sequence[PieceWork],
        order: Mapping[str, Sequence[str]],
        queue: SampleQueue,
        meter: Meter,
        batch_tokens: float,
        cores: Cores,
    ) -> None:
        self.environment, self.works, self.queue, self.meter = environment, works, queue, meter
        self.batch_tokens, self.cores = batch_tokens, cores
        names = dict.fromkeys(name for each in works for name in each.entry.work.holds)
        self.pools = {name: simpy.PriorityResource(environment) for name in names}
        self.places = {
            each.entry.work.key: (_place(each.entry, order), place)
            for place, each in enumerate(works)
        }
        self.spans: list[Span] = []

    def iteration(self, number: int, setting: StreamSetting) -> Steps:
        """Run one iteration, from its first samples to its last update."""
        pieces: list[simpy.Event] = []
        updates = sum(setting.piece_updates)
        learnt = steps = 0.0
        for place, count in enumerate(setting.pieces):
            left = count
            while left:
                taken, tokens = yield from self._taken(left, number, setting)
                left -= taken
                if not left and place == len(setting.pieces) - 1:
                    self.queue.drop_due(number)
                share = tokens / self.batch_tokens
                learnt += share
                piece = Piece(number, len(pieces), share, 0.0, 0.0)
                if not left:
                    steps += setting.piece_updates[place] / updates
                if not left and (not setting.learns or setting.learns[place]):
                    piece = Piece(number, len(pieces), share, learnt, steps)
                    learnt = steps = 0.0
                learning = self.environment.event()
                pieces.append(self._start(piece, learning))
                yield learning
        yield self.environment.all_of(pieces)

    def _taken(
        self, left: int, number: int, setting: StreamSetting
    ) -> Generator[simpy.Event, object, tuple[int, int]]:
        """Take a piece's samples, or what is ready of them; return how many, and their tokens."""
        if setting.most_ready:
            return (yield from self.queue.collect_ready(min(left, setting.most_ready), number))
        return left, (yield from self.queue.collect(left, number))

    def _start(self, piece: Piece, learning: simpy.Event) -> simpy.Event:
        done = {each.entry.work.key: self.environment.event() for each in self.works}
        for each in self.works:
            self.environment.process(self._run(each, piece, done, learning))
        return self.environment.all_of(done.values())

    def _run(
        self, each: PieceWork, piece: Piece, done: Mapping[str, simpy.Event], learning: simpy.Event
    ) -> Steps:
        work = each.entry.work
        if each.together and not piece.learnt:  # a piece after it will be learnt from with it
            if each.learns and not learning.triggered:
                learning.succeed()
            done[work.key].succeed()
            return
        yield self.environment.all_of([done[key] for key in each.after])
        if each.queue_seconds:
            yield from self.cores.work(each.queue_seconds)
        rank = (piece.iteration, piece.number, *self.places[work.key])
        requests = []
        for name in sorted(work.holds):
            request = self.pools[name].request(priority=rank)  # type: ignore[arg-type]
            requests.append((name, request))
            yield request
        if each.learns and not learning.triggered:
            learning.succeed()
        share = piece.learnt if each.together else piece.share
        seconds = each.sample_seconds * share + each.step_seconds * piece.steps + each.call_seconds
        start_seconds = self.environment.now
        held = work.holds if work.activity == "task" else ()
        stage = each.entry.stage
        self.meter.work(start_seconds, stage, held, 1)
        yield from self.cores.work(seconds)
        self.meter.work(self.environment.now, stage, held, -1)
        for name, request in requests:
            self.pools[name].release(request)
        self.spans.append(
            Span(
                name=work.name,
                pool=work.pool,
                iteration=piece.iteration,
                start_seconds=start_seconds,
                end_seconds=self.environment.now,
                activity=work.activity,
            )
        )
        done[work.key].succeed()


def _place(entry: Entry, order: Mapping[str, Sequence[str]]) -> int:
    """Return a work's place in the order of its pool; what is not listed comes first."""
    listed = list(order.get(entry.work.pool, ()))
    return listed.index(entry.work.name) + 1 if entry.work.name in listed else 0
