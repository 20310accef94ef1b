"""Replicas that join and leave between two syncs of weights, and those that are lost.

A replica starts beside the others and joins with the weights of a sync, so that all that it generates has a version. One
that leaves begins nothing more, ends what it has under way, and goes. What a lost one had under way is begun again on
others, with the same random numbers; the run goes on as long as one is left.
"""

from typing import Any

from ray.exceptions import RayError

from rlplan.errors import WorkerLostError
from rlplan.executor.control.feeds.events import Events, Then
from rlplan.executor.control.feeds.rollouts import Replica, Rollouts
from rlplan.executor.workers.pools import WorkerGroup
from rlplan.executor.workers.replicas import MOST_FAILURES, ReplicaGroup
from rlplan.replicas import Event, ReplicaChange


class Membership:
    """Let replicas of a generating pool come and go.

    Args:
        group: The pool's workers.
        rollouts: Whose replicas they are.
        events: Tell when one has started.

    Attributes:
        lost: Replicas whose processes have ended, since that was taken last.
    """

    def __init__(self, group: ReplicaGroup, rollouts: Rollouts, events: Events) -> None:
        self._group, self._rollouts, self._events = group, rollouts, events
        self._ready: list[int] = []
        self._placeless: set[int] = set()
        self._changes: list[ReplicaChange] = []
        self._failures, self._has_failed = 0, False
        self.lost = 0

    @property
    def is_starting(self) -> bool:
        """Tell whether a replica starts that is not ready to join."""
        return len(self._group.starting) > len(self._ready)

    def take_changes(self) -> tuple[ReplicaChange, ...]:
        """Return what happened since this was asked last."""
        changes, self._changes = tuple(self._changes), []
        return changes

    def look_ahead(self, iteration: int) -> None:
        """Start what is wanted from the next iteration on and is not there.

        Args:
            iteration: The one that begins.
        """
        for number in self._group.stranded():
            self._ready = [each for each in self._ready if each != number]
            self._group.remove(number)
            self._note("not started", number)
        self._has_failed = False
        there = len(self._rollouts.staying) + len(self._group.starting)
        missing = max(0, self._group.schedule.at(iteration + 1) - there)
        if self._failures >= MOST_FAILURES:
            missing = 0
        placeless: list[int] = []
        for number in self._group.absent():
            if not missing:
                self._group.give_back(number)
            elif self._begin(number):
                missing -= 1
            else:
                placeless.append(number)
        self._note_placeless(set(placeless[:missing]))

    def _note_placeless(self, numbers: set[int]) -> None:
        """Note once which replicas are wanted and have no place, as many as are missing."""
        for number in sorted(numbers - self._placeless):
            self._note("no place", number)
        self._placeless = numbers

    def at_sync(self, iteration: int) -> None:
        """Let go what is too much, and take in what has started, ahead of the weights for an iteration."""
        wanted = self._group.schedule.at(iteration)
        for replica in self._rollouts.staying[wanted:]:
            replica.leaves = True
            self.went_on(replica)
        ready, self._ready = sorted(self._ready), []
        for number in ready:
            if len(self._rollouts.staying) < wanted:
                self._join(number)
            else:
                self._group.remove(number, leaves=True)

    def went_on(self, replica: Replica) -> None:
        """Let a replica go that leaves and has nothing under way any more."""
        if replica.leaves and replica.is_done:
            self._rollouts.remove(replica)
            number = self._group.number_of(replica.ranks[0])
            self._group.remove(number, leaves=True)
            self._note("left", number)

    def note_end(self, rank: int) -> list[int]:
        """Note that the process of a rank has ended; return the samples that are to begin again.

        Raises:
            WorkerLostError: It was of the last replica.
        """
        replica = self._rollouts.replica_at(rank)
        if replica is None:  # it is known
            return []
        number = self._group.number_of(rank)
        self._rollouts.remove(replica)
        self._group.remove(number)
        self.lost += 1
        again = sorted({*replica.under_way, *replica.queued})
        if not self._rollouts.replicas:
            raise WorkerLostError(
                f"replica {number} ended: killed, out of memory or crashed; it was the last one"
            )
        if not self._rollouts.staying:
            self._rollouts.replicas[0].leaves = False
        self._note("lost", number, begins_again=len(again))
        return again

    def _join(self, number: int) -> None:
        self._group.admit(number)
        self._rollouts.add(tuple(self._group.ranks_of(number)))
        self._note("joined", number)

    # A replica's start, one call after another: its processes meet, and build their models.

    def _begin(self, number: int) -> bool:
        """Begin to start a replica; tell whether there is a place for it."""
        group = self._group.begin(number)
        if group is None:
            return False
        self._then(number, group.start("rendezvous"), lambda found: self._meet(number, found[0]))
        return True

    def _meet(self, number: int, address: str) -> None:
        group = self._group.starting[number]
        calls = group.start("join", self._group.places(address))
        self._then(number, calls, lambda _: self._prepare(number, group))

    def _prepare(self, number: int, group: WorkerGroup) -> None:
        calls = group.start("prepare", self._group.setup_now)
        self._then(number, calls, lambda _: self._is_ready(number))

    def _is_ready(self, number: int) -> None:
        self._failures = 0
        self._ready.append(number)

    def _then(self, number: int, calls: dict[int, Any], then: Then) -> None:
        group = self._group.starting.get(number)

        def go_on(found: list[Any]) -> None:
            if self._group.starting.get(number) is group:  # else it was given up meanwhile
                then(found)

        def failed() -> None:
            if self._group.starting.get(number) is group:
                self._failed(number)

        self._events.when(list(calls.values()), go_on, failed, RayError)

    def _failed(self, number: int) -> None:
        self._group.remove(number)
        if not self._has_failed:  # several at once may have one cause, such as a node that is lost
            self._failures, self._has_failed = self._failures + 1, True
        self._note("not started", number, gives_up=self._failures >= MOST_FAILURES)

    def _note(
        self, event: Event, number: int, *, begins_again: int = 0, gives_up: bool = False
    ) -> None:
        """Note what became of a replica, with how many generate now."""
        change = ReplicaChange(
            event=event,
            replica=number,
            generate=len(self._rollouts.replicas),
            begins_again=begins_again,
            gives_up=gives_up,
        )
        self._changes.append(change)
