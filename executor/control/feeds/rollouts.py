"""Calls of the replicas that generate: what begins where, one call after another of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlplan.dataflow import Task
from rlplan.executor.data.batches import Rows
from rlplan.executor.parallel.positions import generation_positions
from rlplan.executor.queue.transfer_queue import ranges_of
from rlplan.executor.workers.calls import RollCall, RolloutReport
from rlplan.executor.workers.pools import WorkerGroup
from rlplan.plan import Plan
from rlplan.workload import longest

# Tokens of each response that are sampled before it is looked what has ended; twice as many at most in a call,
# since new weights and new responses wait for its end.
ROLL_STEPS, ROLL_LOOKS = 16, 2


@dataclass(slots=True)
class Replica:
    """Hold what a replica does.

    Attributes:
        ranks: Of the pool; the first one's results count.
        running: Responses that it has begun and not ended, as it said last.
        is_busy: Whether a call is under way.
        waited_seconds: For environments alone, since that was asked last.
        queued: Samples that are its own and have not begun.
        under_way: Samples that it has begun and not ended, as it said last.
        leaves: Whether it begins nothing any more.
        unwanted: Samples that it is to forget, if it has them, with its next call.
    """

    ranks: tuple[int, ...]
    running: int = 0
    is_busy: bool = False
    has_new_weights: bool = False
    waited_seconds: float = 0.0
    queued: list[int] = field(default_factory=list)
    unwanted: list[int] = field(default_factory=list)
    under_way: set[int] = field(default_factory=set)
    leaves: bool = False

    @property
    def is_done(self) -> bool:
        """Tell whether nothing is under way on it."""
        return not (self.is_busy or self.running or self.queued)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollResult:
    """Hold the references of a call: outputs of its first rank by key, and what every rank says, the first one first."""

    outputs: dict[str, Any]
    rolled: dict[int, Any]


class Rollouts:
    """Send the calls of the replicas of a plan.

    Args:
        prompts_of: Returns a reference to the prompts of a batch, as columns.
        parts: In which a batch is handed over at most.
    """

    def __init__(
        self,
        plan: Plan,
        task: Task,
        group: WorkerGroup,
        prompts_of: Callable[[int], Any],
        parts: int,
    ) -> None:
        self._task, self._group, self._prompts_of = task, group, prompts_of
        self._sequences, self._parts, self._looks = plan.job.workload.sequences, parts, ROLL_LOOKS
        if plan.learns_in_order:  # neither new weights nor new responses wait for a call's end
            self._looks = -(-longest(plan.job.workload.response_tokens) // ROLL_STEPS)
        self._max_running = plan.tasks[task.name].max_running
        groups = generation_positions(plan).first_groups()
        self.replicas = [Replica(ranks) for ranks in groups if ranks[0] in group.present]

    @property
    def staying(self) -> list[Replica]:
        """Return the replicas that may begin something."""
        return [each for each in self.replicas if not each.leaves]

    @property
    def in_flight(self) -> int:
        """Return how many responses are begun and have not ended, as far as replicas have said."""
        return sum(each.running + int(each.is_busy) for each in self.replicas)

    def add(self, ranks: tuple[int, ...]) -> None:
        """Let a replica generate with the weights that come next."""
        self.replicas.append(Replica(ranks))
        self.replicas.sort(key=lambda each: each.ranks)

    def remove(self, replica: Replica) -> None:
        """Send a replica nothing any more."""
        self.replicas.remove(replica)

    def replica_at(self, rank: int) -> Replica | None:
        """Return the replica of a rank of the pool; None where it is not there."""
        return next((each for each in self.replicas if rank in each.ranks), None)

    def room(self, replica: Replica) -> int:
        """Return how many more responses a replica may run."""
        return self._max_running - replica.running - len(replica.queued)

    def take_weights(self) -> None:
        """Note that what is sent from now on is generated with new weights."""
        for replica in self.replicas:
            replica.has_new_weights = True

    def withdraw(self, samples: Sequence[int]) -> None:
        """Let replicas forget samples."""
        for replica in self.replicas:
            replica.queued = [each for each in replica.queued if each not in samples]
            replica.under_way.difference_update(samples)
            if replica.is_busy or replica.running:
                replica.unwanted += samples

    def send(self, replica: Replica, version: int) -> RollResult:
        """Let a replica begin what is queued, and go on; return at once."""
        begin = self._begun(sorted(replica.queued))
        call = RollCall(
            task=self._task.name,
            outputs=self._task.outputs,
            begin=begin,
            steps=ROLL_STEPS,
            looks=self._looks,
            ends=-(-self._sequences // (self._parts * len(self.replicas))),
            version=version,
            has_new_weights=replica.has_new_weights,
            withdraw=frozenset(divmod(sample, self._sequences) for sample in replica.unwanted),
        )
        arguments = (call, *(self._prompts_of(batch) for batch, _ in begin))
        keys = (*self._task.outputs, "versions")
        results = self._group.send(
            "roll", dict.fromkeys(replica.ranks, arguments), num_returns=len(keys) + 1
        )
        replica.running += len(replica.queued)
        replica.under_way.update(replica.queued)
        replica.queued, replica.unwanted = [], []
        replica.is_busy, replica.has_new_weights = True, False
        first = results[replica.ranks[0]]
        return RollResult(
            outputs=dict(zip(keys, first, strict=False)),
            rolled={rank: result[-1] for rank, result in results.items()},
        )

    def came_back(self, replica: Replica, rolled: RolloutReport) -> list[int]:
        """Note that a call has returned; return the samples that have ended, in their order."""
        replica.is_busy, replica.running = False, rolled.running
        replica.waited_seconds += rolled.report.metrics["environment_seconds"]
        ended = [each.batch * self._sequences + each.row for each in rolled.ended]
        replica.under_way.difference_update(ended)
        return ended

    def waited_seconds(self) -> float:
        """Return how long the replica waited that waited longest for environments, since this was asked last."""
        longest_wait = max((each.waited_seconds for each in self.replicas), default=0.0)
        for each in self.replicas:
            each.waited_seconds = 0.0
        return longest_wait

    def _begun(self, samples: Sequence[int]) -> list[tuple[int, Rows]]:
        rows: dict[int, list[int]] = {}
        for sample in samples:
            batch, row = divmod(sample, self._sequences)
            rows.setdefault(batch, []).append(row)
        return [(batch, ranges_of(own)) for batch, own in rows.items()]
