"""A stream of samples: whatever can go on is sent, and anything is waited for.

Responses begin as far as the staleness bound and the queue's memory let them; tasks take samples from the
queue as they are there; an iteration ends with its last update.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ray.exceptions import ObjectLostError, RayActorError

from rlplan.dataflow import Task
from rlplan.errors import WorkerLostError
from rlplan.executor.control.dispatcher import Batch, Dispatcher, Pieces, PromptPieces
from rlplan.executor.control.feeds.consumers import Learning, Preparing
from rlplan.executor.control.feeds.events import Events, MeasuredCalls
from rlplan.executor.control.feeds.feed import EndedIteration, SentIteration
from rlplan.executor.control.feeds.membership import Membership
from rlplan.executor.control.feeds.rollouts import Replica, Rollouts, RollResult
from rlplan.executor.control.feeds.samples import BatchPrompts, Samples, sample_path
from rlplan.executor.control.pending_calls import PendingCall, PoolRank, stretch_of
from rlplan.executor.data.batches import Columns, split_rows
from rlplan.executor.queue.transfer_queue import HeldPiece, SampleSize, Write, is_lost
from rlplan.executor.workers.calls import RolloutReport
from rlplan.executor.workers.replicas import ReplicaGroup
from rlplan.plan import Plan
from rlplan.replicas import ReplicaChange
from rlplan.rules.batches import handed_over_parts

GENERATE = "actor.generate"


class SampleStream:
    """Let responses go on one by one, through the transfer queue, from generation to training.

    Args:
        prompts: Returns the prompts of a batch as columns, and the texts that are mixed in.

    Attributes:
        samples: That are begun, and the queue that holds them.
    """

    def __init__(
        self, plan: Plan, dispatcher: Dispatcher, prompts: Callable[[int], Columns]
    ) -> None:
        self._plan, self._dispatcher = plan, dispatcher
        self._batch_prompts = BatchPrompts(plan.job, prompts)
        self._prompts = PromptPieces(self._batch_prompts.columns, plan.job.workload.sequences)
        path = sample_path(plan, dispatcher.tasks)
        self.samples = Samples(plan, path, self._batch_prompts)
        self._events, self._measured = Events(), MeasuredCalls(GENERATE)
        self._prompt_references: dict[int, Any] = {}
        generate = next(task for task in dispatcher.tasks if task.generates)
        parts = handed_over_parts(plan, dispatcher.tasks)
        pool = dispatcher.group(generate)
        self._rollouts = Rollouts(plan, generate, pool, self._prompts_of, parts)
        self._members: Membership | None = None
        if isinstance(pool, ReplicaGroup):
            self._members = Membership(pool, self._rollouts, self._events)
        shared = (plan, path, self.samples, self._events, self._batch_prompts)
        self._preparing = Preparing(*shared, self._send_batch, self._write)
        self._learning = Learning(*shared, self._send_batch, self._texts_of)
        self._synced, self._sync_is_due = -1, False
        self._is_last = False

    def begin(self, iteration: int, *, is_last: bool) -> tuple[tuple[PendingCall, ...], Pieces]:
        """Begin an iteration, and send what can be sent."""
        self._begin_stream(iteration)
        self._is_last = is_last
        pieces = self._learning.begin(iteration)
        if self._members is not None and not is_last:
            self._members.look_ahead(iteration)
        self._go_on()
        return (), pieces

    def end(self, running: SentIteration, origin_seconds: float) -> EndedIteration:
        """Let everything go on until an iteration has ended."""
        while not self._learning.is_done:
            self._events.wait()
            self._go_on()
        iteration = running.iteration
        spans, metrics = self._measured.taken(iteration, origin_seconds)
        metrics[GENERATE] = {
            **self._learning.generated,
            "environment_seconds_max": self._rollouts.waited_seconds(),
        }
        changes: tuple[ReplicaChange, ...] = ()
        if self._members is not None:
            metrics[GENERATE]["replicas"] = float(len(self._rollouts.replicas))
            metrics[GENERATE]["lost_replicas"] = float(self._members.lost)
            self._members.lost, changes = 0, self._members.take_changes()
        dropped = self.samples.drop_due(iteration)
        self._rollouts.withdraw(dropped)
        self._sync_is_due = not self._is_last and (iteration + 1) % self._plan.sync_every == 0
        self._forget_prompts()
        ages = self._learning.ages
        return EndedIteration(
            spans=spans, metrics=metrics, ages=ages, dropped=len(dropped), changes=changes
        )

    def bring_newest(self, done: int) -> None:
        """Bring the weights of the iterations that are done to what generates, if they are not there.

        Where responses under way are not to be interrupted it waits for them.
        """
        self._begin_stream(done)
        self._sync_is_due |= self._is_last and self._synced < done
        self._sync()
        while self._sync_is_due:
            self._events.wait()
            self._go_on()

    def stop(self) -> None:
        """End the queue's storage actors."""
        self.samples.queue.stop()

    def position(self, iteration: int) -> tuple[int, tuple[int, ...]]:  # noqa: ARG002 -- it knows
        """Return the next prompt of the stream, and those before it that are not learnt from."""
        return self.samples.position

    def go_on_from(self, iteration: int, next_prompt: int, left: Sequence[int]) -> None:
        """Begin where a run was: prompts that were not learnt from are begun again."""
        self.samples.go_on_from(iteration, next_prompt, left)

    def _begin_stream(self, iteration: int) -> None:
        """Take the stream of prompts up where the run is, with the weights as they are, before all else."""
        if self._synced >= 0:
            return
        if not iteration or not self.samples.position[0]:
            prompts = self._plan.job.workload.prompts
            self.samples.go_on_from(iteration, iteration * prompts, ())
        self._bring_weights(iteration)

    def _go_on(self) -> None:
        """Send everything that can be sent now."""
        self._sync()
        self._preparing.go_on()
        if not self._sync_is_due:  # updates would change the weights that go over
            self._learning.go_on()
        self._roll()

    def _sync(self) -> None:
        """Bring new weights to the generator, once what is in flight may be interrupted."""
        if not self._sync_is_due:
            return
        if self._plan.in_flight == "drain" and self._rollouts.in_flight:
            return
        self._sync_is_due = False
        self._bring_weights(self._learning.iteration + int(self._learning.is_done))

    def _bring_weights(self, version: int) -> None:
        """Send the weights as they are: calls that are sent to replicas later generate with them."""
        if self._members is None:
            self._measured.wait_for(self._dispatcher.bring_weights(), self._events, lambda: None)
        else:
            self._members.at_sync(version)
            for call in self._dispatcher.bring_weights():
                self._measured.wait_for_those_left(call, self._events, self._rank_ended)
        self._synced = version
        self._rollouts.take_weights()

    def _rank_ended(self, place: PoolRank) -> None:
        """Begin again what a replica had under way one of whose processes has ended.

        Raises:
            WorkerLostError: It was the last replica, or no replica.
        """
        pool, rank = place
        if self._members is None or pool != self._plan.tasks[GENERATE].pool:
            raise WorkerLostError(
                f"pool {pool}: worker {rank} ended: killed, out of memory or crashed"
            )
        self.samples.again += self._members.note_end(rank)

    def _roll(self) -> None:
        """Let replicas begin what they may, and go on."""
        if not (self._sync_is_due and self._plan.in_flight == "drain"):
            self._begin()
        for replica in self._rollouts.replicas:
            if not replica.is_busy and (replica.queued or replica.running):
                self._send_roll(replica)

    def _begin(self) -> None:
        """Share out lost samples, and then prompts as far as they may be begun, to replicas."""
        again, self.samples.again = self.samples.again, []
        for sample in (each for each in again if each in self.samples.ledger):
            self.samples.note_begun([sample], self._synced)
            self._replica_of(sample).queued.append(sample)
        most = None
        if self._is_last:
            most = (self._learning.iteration + 1) * self.samples.bound.prompts
        in_order = self._plan.learns_in_order
        while self.samples.may_begin(self._synced, most):
            replica = None if in_order else self._free_replica()
            if replica is None and not in_order:
                return
            samples = self.samples.begin_prompt(self._synced)
            if not samples:
                return
            for sample in samples:
                (replica or self._replica_of(sample)).queued.append(sample)

    def _free_replica(self) -> Replica | None:
        """Return the idle replica with the most room, if a whole prompt fits or nothing else is there."""
        count = self._plan.job.workload.samples_per_prompt
        idle = [each for each in self._rollouts.staying if not each.is_busy]
        free = [
            each
            for each in idle
            if self._rollouts.room(each) >= count or not each.running + len(each.queued)
        ]
        return max(free, key=self._rollouts.room, default=None)

    def _replica_of(self, sample: int) -> Replica:
        """Return the replica that generates a sample in a synchronous batch."""
        work, replicas = self._plan.job.workload, self._rollouts.staying
        shares = split_rows(((0, work.sequences),), len(replicas), block=work.samples_per_prompt)
        row = sample % work.sequences
        place = next(
            index
            for index, share in enumerate(shares)
            if any(start <= row < stop for start, stop in share)
        )
        return replicas[place]

    def _send_roll(self, replica: Replica) -> None:
        result = self._rollouts.send(replica, self._synced)
        references, lost = list(result.rolled.values()), None
        if self._members is not None:
            place = self._plan.tasks[GENERATE].pool, replica.ranks[0]
            lost = partial(self._rank_ended, place)
        self._events.when(references, partial(self._rolled, replica, result), lost)

    def _rolled(self, replica: Replica, result: RollResult, values: list[RolloutReport]) -> None:
        """Write the responses that have ended to the queue."""
        rolled = values[0]
        pool = self._plan.tasks[GENERATE].pool
        reports = {
            (pool, rank): own.report for rank, own in zip(result.rolled, values, strict=True)
        }
        self._measured.note(stretch_of(GENERATE, pool, "task", reports))
        ended = self._rollouts.came_back(replica, rolled)
        if self._members is not None:
            self._members.went_on(replica)
        sizes = self.samples.queue.sizes
        if not self._sync_is_due:
            self._roll()  # ahead of the queue's calls: all that it waits for is there
        if not ended:
            return
        for sample, each in zip(ended, rolled.ended, strict=True):
            if sample in self.samples.ledger:  # else it was dropped meanwhile
                sizes[sample] = SampleSize(
                    each.prompt_tokens, each.response_tokens, each.observed_tokens, each.turns
                )
        width = max(each.prompt_tokens for each in rolled.ended)
        pieces = {
            key: [HeldPiece(samples=ended, prompt_width=width, reference=reference)]
            for key, reference in result.outputs.items()
        }
        self._write_generated(pieces, ended)

    def _write_generated(
        self, pieces: Mapping[str, Sequence[HeldPiece]], samples: Sequence[int]
    ) -> None:
        """Write what was generated; what does not arrive is written again, to the actor that follows."""
        places = {sample: self.samples.ledger.place(sample) for sample in samples}
        attempts = {sample: place[1] for sample, place in places.items() if place is not None}
        for write in self.samples.queue.write(pieces, attempts):
            self._events.when(
                [write.done],
                lambda _, write=write: self.samples.queue.note(write),  # type: ignore[misc]
                lambda write=write: self._generated_was_lost(pieces, write),  # type: ignore[misc]
                (RayActorError, ObjectLostError),
            )

    def _generated_was_lost(self, pieces: Mapping[str, Sequence[HeldPiece]], write: Write) -> None:
        """Write what was generated to the storage actor that follows; what is gone with its replica's node is begun again."""
        if is_lost(write.done):
            self._write_was_lost(
                write, lambda lost: self._write_generated(pieces, list(lost.attempts))
            )
        elif self._members is None:
            raise WorkerLostError("what was generated is lost with its node")
        else:
            place = self.samples.ledger.place
            self.samples.again += [
                sample
                for sample, attempt in write.attempts.items()
                if place(sample) == (write.unit, attempt)
            ]

    def _write(
        self,
        pieces: Mapping[str, Sequence[HeldPiece]],
        attempts: Mapping[int, int],
        lost: Callable[[Write], None],
    ) -> None:
        """Write columns to the queue, and note them once they have arrived."""
        for write in self.samples.queue.write(pieces, attempts):
            self._events.when(
                [write.done],
                lambda _, write=write: self.samples.queue.note(write),  # type: ignore[misc]
                lambda write=write: self._write_was_lost(write, lost),  # type: ignore[misc]
            )

    def _write_was_lost(self, write: Write, lost: Callable[[Write], None]) -> None:
        self.samples.again += self.samples.queue.replace(write.unit, write.life)
        lost(write)

    def _send_batch(self, tasks: tuple[Task, ...], batch: Batch, then: Callable[[], None]) -> None:
        """Send tasks on a batch, in the plan's order; call a function when they are done."""
        in_order = (task for task in self._dispatcher.order if task in tasks)
        calls = [self._dispatcher.send(task, batch) for task in in_order]
        self._measured.wait_for(calls, self._events, then)

    def _prompts_of(self, number: int) -> Any:
        if number not in self._prompt_references:
            pieces = self._prompts.batch(number).pieces
            self._prompt_references[number] = pieces["prompts"][0].reference
        return self._prompt_references[number]

    def _texts_of(self, iteration: int) -> Any:
        return self._prompts.batch(iteration).pieces["pretrain"]

    def _forget_prompts(self) -> None:
        oldest = self.samples.oldest_batch
        self._batch_prompts.forget(oldest)
        for number in [each for each in self._prompt_references if each < oldest]:
            del self._prompt_references[number]
