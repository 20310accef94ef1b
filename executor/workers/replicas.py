"""A generating pool whose replicas come and go: each is a worker group of its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray

from rlplan.errors import RlplanError
from rlplan.executor.workers.calls import PoolSetup, RankInPool
from rlplan.executor.workers.cluster.nodes import ReplicaPlaces
from rlplan.executor.workers.pools import (
    LOOK_SECONDS,
    LOSS_SHOWS_SECONDS,
    WorkerGroup,
    fetched,
    is_lost,
)
from rlplan.executor.workers.wanted import Wanted

# In how many iterations in a row replicas may fail to start before none is started any more.
MOST_FAILURES = 3


class ReplicaGroup(WorkerGroup):
    """Hold a pool's replicas: processes of one meet each other alone, so that others go on when it joins, leaves or is lost.

    Ranks are those of the pool with all replicas of its layout. Those of replicas that are not there get no calls.

    Args:
        start: Starts the processes of a replica, by its number; None where there is no place for it.
        schedule: How many are wanted.
        replicas: Of the layout.
        ranks_each: Of a replica.
        places: On the nodes of a cluster; None: slots of this machine.

    Attributes:
        members: By number, the replicas that generate.
        starting: By number, those that are to join.
        setup: What each of them runs, as a pool of one replica.
        device: `cpu` or `cuda`.
    """

    setup: PoolSetup
    device: str

    def __init__(
        self,
        worker: type[Any],
        start: Callable[[int], WorkerGroup | None],
        schedule: Wanted,
        replicas: int,
        ranks_each: int,
        places: ReplicaPlaces | None = None,
    ) -> None:
        super().__init__(worker, ())
        self._begin, self.schedule = start, schedule
        self._replicas, self._ranks_each, self._places = replicas, ranks_each, places
        self.members: dict[int, WorkerGroup] = {}
        self.starting: dict[int, WorkerGroup] = {}

    @property
    def actors(self) -> list[Any]:
        """Return Ray's handles of the workers that are there, by rank."""
        return [actor for number in sorted(self.members) for actor in self.members[number].actors]

    @property
    def ranks(self) -> int:
        """Return the number of workers with all replicas."""
        return self._replicas * self._ranks_each

    @property
    def present(self) -> tuple[int, ...]:
        """Return the ranks that are there."""
        return tuple(rank for number in sorted(self.members) for rank in self.ranks_of(number))

    def ranks_of(self, number: int) -> range:
        """Return the ranks of a replica."""
        return range(number * self._ranks_each, (number + 1) * self._ranks_each)

    def number_of(self, rank: int) -> int:
        """Return the replica of a rank."""
        return rank // self._ranks_each

    def begin(self, number: int) -> WorkerGroup | None:
        """Start the processes of a replica that is not there, and does not generate yet; None where there is no place for it."""
        assert number not in {**self.members, **self.starting}, "a replica starts once"
        group = self._begin(number)
        if group is not None:
            self.starting[number] = group
        return group

    def admit(self, number: int) -> None:
        """Let a replica that has started be one of those that generate."""
        self.members[number] = self.starting.pop(number)

    def remove(self, number: int, *, leaves: bool = False) -> None:
        """End the processes of a replica.

        Args:
            leaves: Whether its places on a cluster are free for others from now on; else it starts there again.
        """
        group = self.members.pop(number, None) or self.starting.pop(number)
        group.stop()
        if leaves:
            self.give_back(number)

    def give_back(self, number: int) -> None:
        """Free the places on a cluster of a replica that is neither there nor starting, if it still has some."""
        if self._places is not None:
            self._places.give_back(number)

    def stranded(self) -> list[int]:
        """Return the replicas that wait to start on a node which is lost."""
        places = self._places
        if places is None:
            return []
        return [number for number in self.starting if places.is_stranded(number)]

    @property
    def setup_now(self) -> PoolSetup:
        """Return what a replica runs that starts now, on a node that came later too."""
        if self._places is None or not self._places.clock_offsets:
            return self.setup
        offsets = {**self.setup.clock_offsets, **self._places.clock_offsets}
        return replace(self.setup, clock_offsets=offsets)

    def absent(self) -> list[int]:
        """Return the replicas that are neither there nor starting."""
        there = {**self.members, **self.starting}
        return [number for number in range(self._replicas) if number not in there]

    def places(self, address: str) -> Sequence[RankInPool]:
        """Return who the workers of a replica are, which meet at an address."""
        size = self._ranks_each
        return [
            RankInPool(rank=rank, ranks=size, address=address, device=self.device)
            for rank in range(size)
        ]

    def send(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], num_returns: int = 1
    ) -> dict[int, Any]:
        """Call a method on those of the ranks that are there."""
        found: dict[int, Any] = {}
        for number, group in self.members.items():
            own = self.ranks_of(number)
            given = {rank - own.start: arguments[rank] for rank in own if rank in arguments}
            sent = group.send(method, given, num_returns)
            found |= {own.start + rank: reference for rank, reference in sent.items()}
        return dict(sorted(found.items()))

    def start(self, method: str, argument: Any = None) -> dict[int, Any]:
        """Call a method on all ranks that are there, with one argument."""
        return self.send(method, dict.fromkeys(self.present, (argument,)))

    def call(self, method: str, argument: Any = None) -> list[Any]:
        """Call a method on all ranks that are there, wait, and return what those return that have not ended."""
        return list(self.answers(self.start(method, argument)).values())

    def answers(self, references: Mapping[int, Any]) -> dict[int, Any]:
        """Wait for what ranks answer, and return it by rank, without replicas one of whose processes has ended.

        These are left to who lets replicas come and go, who learns of it by the next call that it sends them. Where a rank fails whose
        replica is whole, the others are not waited for: they may hang in a collective with it.

        Raises:
            UserError: A worker met a mistake of the user's.
            RlplanError: A worker failed, or all replicas have ended.
        """
        waiting = {reference: rank for rank, reference in references.items()}
        ended = set[int]()
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=LOOK_SECONDS)
            for reference in ready:
                rank = waiting.pop(reference)
                number = self.number_of(rank)
                if number not in ended and self._has_ended(number, rank, reference):
                    ended.add(number)
                    self.members[number].end()  # other ranks may hang in a collective with it
        left = {
            rank: each for rank, each in references.items() if self.number_of(rank) not in ended
        }
        if references and not left:
            raise RlplanError("a worker died: of all replicas that generate")
        return fetched(left)

    def _has_ended(self, number: int, rank: int, answer: Any) -> bool:
        """Tell whether a process of a replica has ended, by what one of its ranks answers.

        Raises:
            RlplanError: The rank failed, and all processes are there.
        """
        if is_lost(answer):
            return True
        try:
            fetched({rank: answer})
        except RlplanError:  # of a rank whose peer has ended, or a failure of its own
            if self.members[number].lost_ranks(LOSS_SHOWS_SECONDS):
                return True
            raise
        return False

    def stop(self) -> None:
        """End all workers and free their places."""
        for number in [*self.members, *self.starting]:
            self.remove(number)

    def end(self) -> None:
        """Kill all workers."""
        for group in [*self.members.values(), *self.starting.values()]:
            group.end()
