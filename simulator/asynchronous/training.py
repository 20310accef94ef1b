"""Training on samples as they come: the works that pieces of an iteration pass through, and preparation beside them.

The works of an iteration process it piece by piece (`Training`). The works before the updates may also process responses
as they end, whichever iteration will learn from them (`Preparation`): this project's executor does so in endless modes.
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import simpy

from rlplan.dataflow import SHARES_AHEAD
from rlplan.results.forecast import CALL
from rlplan.simulator.asynchronous.samples import Sample, SampleQueue
from rlplan.simulator.asynchronous.setting import StreamSetting
from rlplan.simulator.timeline.agenda import Entry
from rlplan.simulator.timeline.engine import Engine, Steps, WorkRun, begin

# Causes whose seconds an optimizer's step has, however many samples it learns from.
OF_STEPS = ("optimizer", "gradient reduction")


@dataclass(frozen=True, slots=True)
class PieceWork:
    """Hold one work that the pieces of an iteration pass through.

    Attributes:
        after: Keys of the works that must end first, for the same piece.
        learns: Whether it updates a model.
        together: Whether it needs all samples of an update at once, as updates do.
        sample_seconds: Of a whole iteration of samples of mean length.
        pass_seconds: Fixed cost of each pass over samples that are prepared as they end, added to their part of
            `sample_seconds`.
        step_seconds: Of all optimizer steps of an iteration.
        call_seconds: Of one call, of which each piece is one; 0 where `sample_seconds` includes an iteration's calls.
        queue_seconds: Of one call that writes a piece to a transfer queue or reads it; 0 without a queue.
        share: Most responses that are prepared together as they end; 0 is no limit within a batch.
        fixed: Whether only certain responses can be prepared together: consecutive shares of a batch.
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
    """Return a work with the fixed cost of a pass taken out of its `sample_seconds`.

    Args:
        pass_seconds: Fixed cost of a pass.
        passes: Passes that the cost of a whole iteration includes.
    """
    samples = max(0.0, work.sample_seconds - passes * pass_seconds)
    return replace(work, sample_seconds=samples, pass_seconds=pass_seconds)


def preparing(works: Iterable[PieceWork]) -> list[PieceWork]:
    """Return the works that depend, directly or not, on no work that needs an update's samples together, in their order."""
    found: dict[str, PieceWork] = {}
    for each in works:
        if not each.together and all(key in found for key in each.after):
            found[each.entry.work.key] = each
    return list(found.values())


def learning(works: Sequence[PieceWork]) -> list[PieceWork]:
    """Return the other works, those of updates; they wait for one another only, since their other inputs are prepared before."""
    before = {each.entry.work.key for each in preparing(works)}
    return [
        replace(each, after=tuple(key for key in each.after if key not in before))
        for each in works
        if each.entry.work.key not in before
    ]


# Calls of storage actors before each call of a task that takes samples from a transfer queue: one writes the columns, one
# reads them.
QUEUE_CALLS = 2


@dataclass(frozen=True, slots=True)
class Piece:
    """Hold a piece of an iteration.

    Attributes:
        share: Its tokens, as a share of those of an iteration with samples of mean length.
        learnt: The share that is trained on after it: its own, and that of earlier pieces that waited; 0 if it waits.
        steps: Share of the iteration's optimizer steps that this training takes.
    """

    iteration: int
    number: int
    share: float
    learnt: float
    steps: float


class Training:
    """Run iterations one after another, each piece by piece.

    The samples of a piece are taken when the update on the previous piece begins, so that other pools prepare them
    meanwhile. Waiting works get a pool by (iteration, piece, place in the pool's order); beside `Preparation`, first come
    first served.

    Args:
        order: By pool, names of works in the order in which they get the pool when several wait.
        batch_tokens: Tokens of an iteration's samples, if they have mean length.
        prepared: Whether samples are prepared before (`Preparation`).
        helped: Returns the seconds that lent GPUs save on a piece of a work, given its pool, the seconds of its samples
            and its optimizer steps.
    """

    def __init__(
        self,
        engine: Engine,
        works: Sequence[PieceWork],
        order: Mapping[str, Sequence[str]],
        queue: SampleQueue,
        batch_tokens: float,
        *,
        prepared: bool = False,
        helped: Callable[[str, float, int], float] | None = None,
    ) -> None:
        self.engine, self.works, self.queue = engine, works, queue
        self.helped, self.updates = helped, 0
        self.batch_tokens, self.prepared = batch_tokens, prepared
        self.places = {
            each.entry.work.key: (each.entry.work.place_in(order), place)
            for place, each in enumerate(works)
        }

    def iteration(self, number: int, setting: StreamSetting) -> Steps:
        """Run one iteration, from its first samples to its last update."""
        pieces: list[simpy.Event] = []
        updates = self.updates = sum(setting.piece_updates)
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
            updating = self.engine.environment.event()
            pieces.append(self._start(piece, updating))
            yield updating
        yield self.engine.environment.all_of(pieces)

    def _start(self, piece: Piece, updating: simpy.Event) -> simpy.Event:
        ended = self.engine.start([self._run_of(each, piece, updating) for each in self.works])
        return self.engine.environment.all_of(ended.values())

    def _run_of(self, each: PieceWork, piece: Piece, updating: simpy.Event) -> WorkRun:
        """Return the run of a work for a piece."""

        def updates() -> None:
            if not updating.triggered:
                updating.succeed()

        work, share = each.entry.work, piece.learnt if each.together else piece.share
        seconds = each.sample_seconds * share + each.step_seconds * piece.steps
        if not self.prepared:
            seconds += each.call_seconds
        waits = each.together and not piece.learnt  # a piece after it will be learnt from with it
        if self.helped and not waits:
            steps = round(piece.steps * self.updates) if each.learns else 0
            seconds -= self.helped(work.pool, each.sample_seconds * share, steps)
        rank = () if self.prepared else (piece.iteration, piece.number, *self.places[work.key])
        return WorkRun(
            work=work,
            iteration=piece.iteration,
            seconds=None if waits else seconds,
            rank=rank,
            after=each.after,
            call_seconds=self._calls_seconds(each),
            begins=updates if each.learns else None,
        )

    def _calls_seconds(self, each: PieceWork) -> float:
        """Return the seconds of the calls before a work, during which its pool is free.

        Works that train on prepared samples are sent together: samples are read once, and the later works have arrived when
        the first ends.
        """
        if not self.prepared:
            return QUEUE_CALLS * each.queue_seconds
        return 0.0 if each.after else each.queue_seconds + each.call_seconds


@dataclass(slots=True, eq=False)
class Response:
    """Hold a response that has ended.

    Attributes:
        tokens: Of prompt and response.
        left: Works that it has not gone through.
    """

    sample: Sample
    tokens: int
    left: int


SAMPLE_NUMBER = attrgetter("sample.number")


class ReadyResponses:
    """Hold responses that are ready for a work, until enough of them go through it together.

    Args:
        whole: Responses of a batch.
        unit: Responses of a sample.
    """

    def __init__(self, work: PieceWork, whole: int, unit: int) -> None:
        self.work, self.whole, self.unit = work, whole, unit
        # By their samples, of one sample in the order in which they came.
        self._oldest: list[Response] = []
        self._new: list[Response] = []  # behind these as they came
        self._shares: dict[int, list[Response]] = {}
        self._complete: list[tuple[int, list[Response]]] = []

    def add(self, responses: Sequence[Response]) -> None:
        """Take responses, in the order in which they came."""
        if not self.work.fixed:
            self._new += responses
            return
        for response in responses:
            batch, row = divmod(response.sample.number * self.unit, self.whole)
            place = row // self.work.share
            share = self._shares.setdefault(batch * self.whole + place, [])
            share.append(response)
            if len(share) == min(self.work.share, self.whole - place * self.work.share):
                heapq.heappush(self._complete, (batch * self.whole + place, share))

    def take(self) -> list[Response]:
        """Return responses that go through the work together, the oldest first; none where there are not enough."""
        if self.work.fixed:
            return heapq.heappop(self._complete)[1] if self._complete else []
        if self._new:
            self._sort_new()
        count = self._going_together()
        found = self._oldest[:count]
        del self._oldest[:count]
        return found

    def _sort_new(self) -> None:
        new, self._new = self._new, []
        if self._oldest:
            for response in new:
                insort(self._oldest, response, key=SAMPLE_NUMBER)
            return
        new.sort(key=SAMPLE_NUMBER)
        self._oldest = new

    def _going_together(self) -> int:
        """Return how many of the oldest go through the work together: a share, or all of a batch."""
        oldest = self._oldest
        if not oldest or self.work.share:
            return self.work.share
        batch = oldest[0].sample.number * self.unit // self.whole
        if oldest[-1].sample.number * self.unit // self.whole == batch:
            return len(oldest)
        behind = -(-(batch + 1) * self.whole // self.unit)
        return bisect_left(oldest, behind, key=SAMPLE_NUMBER)


class Preparation:
    """Let works prepare responses, a few shares of each work at a time.

    Args:
        batch_tokens: Of the responses that an iteration learns from, if they are mean ones.
        whole: Responses of a batch; what is judged together is of one.
        unit: Responses of a sample.
        write_seconds: From the end of responses until the first work may read them.
        prepared: Called with the sample of each response that has gone through all works.

    Attributes:
        iteration: The one that goes on, for spans.
    """

    def __init__(
        self,
        engine: Engine,
        works: Sequence[PieceWork],
        *,
        batch_tokens: float,
        whole: int,
        unit: int,
        write_seconds: float,
        prepared: Callable[[Sample], None],
    ) -> None:
        self.engine = engine
        self.batch_tokens = batch_tokens
        self.write_seconds, self.prepared = write_seconds, prepared
        self.works = {each.entry.work.key: each for each in works}
        self.iteration = 0
        self._ready = {key: ReadyResponses(each, whole, unit) for key, each in self.works.items()}
        self._waits: dict[str, dict[Response, int]] = {key: {} for key in self.works}
        self._under_way: Counter[str] = Counter()
        self._ended: list[Response] = []

    def end(self, sample: Sample, tokens: int) -> None:
        """Take a response of so many tokens that has ended."""
        if not self._ended:
            begin(self._write())
        self._ended.append(Response(sample, sample.prompt + tokens, len(self.works)))

    def _write(self) -> Steps:
        """Write all that ends in this instant, and let works take it."""
        yield self.engine.environment.timeout(0)
        ended, self._ended = self._ended, []
        yield self.engine.cores.work(self.write_seconds)
        for response in ended:
            if not response.left:
                self.prepared(response.sample)
        for key, each in self.works.items():
            if each.after:
                if len(each.after) > 1:
                    self._waits[key] |= dict.fromkeys(ended, len(each.after))
                continue
            self._ready[key].add(ended)
            self._go_on(key)

    def _go_on(self, key: str) -> None:
        while self._under_way[key] < SHARES_AHEAD and (share := self._ready[key].take()):
            self._under_way[key] += 1
            begin(self._run(key, share))

    def _run(self, key: str, share: Sequence[Response]) -> Steps:
        each = self.works[key]
        sending_seconds = each.queue_seconds + each.call_seconds
        if sending_seconds:  # they are read and sent; meanwhile the pool has the share before it
            yield self.engine.cores.work(sending_seconds)
        tokens = sum([response.tokens for response in share])
        seconds = each.pass_seconds + each.sample_seconds * tokens / self.batch_tokens
        yield from self.engine.work(each.entry.work, seconds, self.iteration)
        self._under_way[key] -= 1
        self._go_on(key)
        if each.queue_seconds:  # what was made of them is written
            yield self.engine.cores.work(each.queue_seconds)
        for response in share:
            response.left -= 1
            if not response.left:
                self.prepared(response.sample)
        for other, follower in self.works.items():
            if key in follower.after:
                self._follow(other, share)

    def _follow(self, key: str, share: Sequence[Response]) -> None:
        """Let a work take responses once all that it waits for is there."""
        if len(self.works[key].after) > 1:
            waits = self._waits[key]
            for response in share:
                waits[response] -= 1
            share = [response for response in share if not waits[response]]
            for response in share:
                del waits[response]
        self._ready[key].add(share)
        self._go_on(key)
