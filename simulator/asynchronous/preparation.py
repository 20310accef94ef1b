"""Preparation that goes on by itself: works take responses as they end, whichever iteration will learn from them.

So this project's executor prepares in mode `async`. What is learnt from waits for what is prepared, and nothing else
does: shares are prepared beside updates, and for iterations that have not begun.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import simpy

from rlplan.dataflow import SHARES_AHEAD
from rlplan.simulator.asynchronous.cores import Steps, begin
from rlplan.simulator.asynchronous.pools import PieceWork, Pools
from rlplan.simulator.asynchronous.samples import Sample


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


class ReadyResponses:
    """Hold responses that are ready for a work, until enough of them go through it together.

    Args:
        whole: Responses of a batch.
        unit: Responses of a sample.
    """

    def __init__(self, work: PieceWork, whole: int, unit: int) -> None:
        self.work, self.whole, self.unit = work, whole, unit
        self._oldest: list[tuple[int, int, Response]] = []
        self._shares: dict[int, list[Response]] = {}
        self._complete: list[tuple[int, list[Response]]] = []
        self._count = 0

    def add(self, response: Response) -> None:
        """Take a response."""
        self._count += 1
        if not self.work.fixed:
            heapq.heappush(self._oldest, (response.sample.number, self._count, response))
            return
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
        found: list[Response] = []
        while self._oldest and self._goes_with(found, self._oldest[0][2]):
            found.append(heapq.heappop(self._oldest)[2])
        return found

    def _goes_with(self, found: Sequence[Response], response: Response) -> bool:
        if not found:
            return True
        if self.work.share:
            return len(found) < self.work.share
        return self._batch_of(found[0]) == self._batch_of(response)

    def _batch_of(self, response: Response) -> int:
        return response.sample.number * self.unit // self.whole


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
        environment: simpy.Environment,
        works: Sequence[PieceWork],
        pools: Pools,
        *,
        batch_tokens: float,
        whole: int,
        unit: int,
        write_seconds: float,
        prepared: Callable[[Sample], None],
    ) -> None:
        self.environment, self.pools = environment, pools
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
        yield self.environment.timeout(0)
        ended, self._ended = self._ended, []
        yield self.pools.cores.work(self.write_seconds)
        for response in ended:
            if not response.left:
                self.prepared(response.sample)
        for key, each in self.works.items():
            if each.after:
                self._waits[key] |= dict.fromkeys(ended, len(each.after))
                continue
            for response in ended:
                self._ready[key].add(response)
            self._go_on(key)

    def _go_on(self, key: str) -> None:
        while self._under_way[key] < SHARES_AHEAD and (share := self._ready[key].take()):
            self._under_way[key] += 1
            begin(self._run(key, share))

    def _run(self, key: str, share: Sequence[Response]) -> Steps:
        each = self.works[key]
        sending_seconds = each.queue_seconds + each.call_seconds
        if sending_seconds:  # they are read and sent; meanwhile the pool has the share before it
            yield self.pools.cores.work(sending_seconds)
        tokens = sum(response.tokens for response in share)
        seconds = each.pass_seconds + each.sample_seconds * tokens / self.batch_tokens
        yield from self.pools.work(each.entry, seconds, self.iteration)
        self._under_way[key] -= 1
        self._go_on(key)
        if each.queue_seconds:  # what was made of them is written
            yield self.pools.cores.work(each.queue_seconds)
        for response in share:
            response.left -= 1
            if not response.left:
                self.prepared(response.sample)
        for other, follower in self.works.items():
            if key in follower.after:
                self._follow(other, share)

    def _follow(self, key: str, share: Sequence[Response]) -> None:
        """Let a work take responses once all that it waits for is there."""
        waits = self._waits[key]
        for response in share:
            waits[response] -= 1
            if not waits[response]:
                del waits[response]
                self._ready[key].add(response)
        self._go_on(key)
