"""The single controller: it walks the dataflow, sends every call at once, and sees references only.

A worker starts a task when the pool is free for it and the inputs are there, so a model
on another pool starts as soon as its inputs exist, without another message.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task
from rlplan.executor.control.loops import (
    beside_generation,
    ended_first,
    enough_groups,
    generated,
    left_to_do,
    one_batch,
    one_step_off,
    sampled_again,
)
from rlplan.executor.control.pending_calls import (
    CallLog,
    PendingCall,
    metrics_by_task,
    reported_by,
    sending_order,
)
from rlplan.executor.control.prompt_batches import Batch, PromptPieces
from rlplan.executor.control.spans import PoolRank, measured_spans
from rlplan.executor.data.batches import (
    Array,
    Columns,
    Piece,
    Rows,
    assemble,
    common_rows,
    overlapping,
    split_rows,
)
from rlplan.executor.data.workload import job_of_batches
from rlplan.executor.learning.multiplier import initial_state, next_state
from rlplan.executor.parallel.positions import (
    RankPositions,
    generation_positions,
    shares_weights,
    task_positions,
)
from rlplan.executor.rollout.completions import Completions
from rlplan.executor.workers.calls import Segment, SegmentCall, TaskCall
from rlplan.executor.workers.pools import WorkerGroup, fetched
from rlplan.executor.workers.protocols import PROTOCOLS
from rlplan.executor.workers.stages import STAGES
from rlplan.executor.workers.transports import TRANSPORTS
from rlplan.plan import Plan
from rlplan.trace import IterationSpan, Span

# Steps of a segment of several replicas: none knows what the others have ended, and all go on until the segment has.
# One replica alone sees when there is enough.
SEGMENT_STEPS = 16


class BatchInSegments:
    """Generate a batch on the replicas of a pool until enough of it has ended.

    Args:
        task: That generates.
        shares: By rank, the rows that it begins.
    """

    def __init__(
        self,
        plan: Plan,
        group: WorkerGroup,
        task: Task,
        batch: Batch,
        positions: RankPositions,
        shares: Mapping[int, Rows],
    ) -> None:
        self.task, self._shares = task, shares
        self._group, self._batch = group, batch
        self._replicas = positions.first_groups()
        self._completions = Completions(
            plan.job.workload, groups=load_algorithm(plan.job.algorithm).groups
        )
        prompts = batch.pieces["prompts"][0].reference
        first = {rank: (self._segment(rows), prompts) for rank, rows in shares.items()}
        self._sent = group.send("play_segment", first)

    def chosen(self) -> Rows:
        """Wait until enough has ended; return the rows that are learnt from, in their order.

        Raises:
            RlplanError: A worker failed or died.
        """
        number = 0
        while True:
            played: Mapping[int, Segment] = fetched(self._sent)
            for ranks in self._replicas:
                if ranks[0] in played:
                    self._completions.note(number, played[ranks[0]].ended)
            if self._completions.are_enough:
                return self._completions.chosen
            number += 1
            following = {rank: (self._segment(None),) for rank in played if played[rank].running}
            self._sent = self._group.send("play_segment", following)

    def hand_over(self, rows: Rows) -> tuple[dict[int, Rows], dict[int, tuple[TaskCall]]]:
        """Return by rank what it hands over of rows, and the call that asks for it; it forgets the rest."""
        shares = {rank: common_rows(rows, own) for rank, own in self._shares.items()}
        return shares, {rank: (self._handing_over(share),) for rank, share in shares.items()}

    def _handing_over(self, rows: Rows) -> TaskCall:
        return TaskCall(
            task=self.task.name,
            outputs=self.task.outputs,
            iteration=self._batch.number,
            rows=rows,
            inputs={},
        )

    def _segment(self, begin: Rows | None) -> SegmentCall:
        """Return the next segment: a replica alone ends it when enough has ended."""
        is_alone = len(self._replicas) == 1
        return SegmentCall(
            task=self.task.name,
            batch=self._batch.number,
            begin=begin,
            steps=None if is_alone else SEGMENT_STEPS,
            completions=self._completions if is_alone else None,
        )


TRANSITION = "transition"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentIteration:
    """Hold an iteration that was sent off."""

    iteration: int
    start_seconds: float
    calls: tuple[PendingCall, ...]
    # Keeps the objects of the iteration alive until it is finished.
    pieces: Mapping[str, tuple[Piece, ...]] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredIteration:
    """Hold what an iteration measured: its spans, and by task the metrics of all its ranks.

    Attributes:
        state: What the algorithm went into it with, by name.
        ages: Of each sample that went through the transfer queue, how many updates the weights lacked that
            began it.
        dropped: Samples that were begun and got too old: nobody learns from them.
    """

    span: IterationSpan
    spans: tuple[Span, ...]
    metrics: Mapping[str, Mapping[str, float]]
    state: Mapping[str, float] = field(default_factory=dict)
    ages: Sequence[int] = ()
    dropped: int = 0


class Controller:
    """Run iterations of a plan on worker groups.

    Args:
        groups: By pool.
        prompts: Returns the prompts of a batch as columns, and the texts that are mixed in.

    Attributes:
        prompts: Batches of prompts, as they are handed out.
        state: What the algorithm carries from iteration to iteration, by name; it belongs into a
            checkpoint.
        generator_is_ready: Whether what generates has the weights for the next batch already, from a
            checkpoint.
        origin_seconds: From when spans are counted, on the host's clock; None: from the first
            iteration that is sent.
    """

    def __init__(
        self,
        plan: Plan,
        tasks: tuple[Task, ...],
        groups: Mapping[str, WorkerGroup],
        prompts: Callable[[int], Columns],
    ) -> None:
        self._plan, self._groups = plan, groups
        self._begun = job_of_batches(plan).workload
        self.prompts = PromptPieces(prompts, self._begun.sequences)
        self._order = sending_order(plan, tasks)
        self._algorithm = load_algorithm(plan.job.algorithm)
        self.state = initial_state(self._algorithm, plan.job)
        self.generator_is_ready = False
        self.origin_seconds: float | None = None
        self._places = {
            task.name: STAGES.load(task.kind).positions(plan, task) for task in self._order
        }
        self._calls = CallLog()
        self._ahead: tuple[_IterationRun, Batch] | None = None
        self._in_segments: BatchInSegments | None = None
        # What the ranks of another pool generate with, so that each gets just its part.
        self._shards: list[Any] = []
        train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
        # A pool that also trains gives the generate layout up after each task that generates.
        self._reshards_every_time = train.pool == generate.pool
        if not self._reshards_every_time:
            self._shards = groups[generate.pool].call("shard_layout")

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks of an iteration in the order in which they are sent."""
        return self._order

    def send(self, iteration: int, *, is_last: bool = False) -> SentIteration:
        """Send all calls of an iteration, and where iterations overlap the next one's generation.

        Args:
            is_last: Whether none follows, so that nothing is generated for it.
        """
        start = time.monotonic()
        if self.origin_seconds is None:
            self.origin_seconds = start
        if self._plan.flow.is_batch_ahead:
            run, batch = self._ahead or self._completed(*self._generated(iteration))
            assert run.iteration == iteration
            self._learn_and_generate(run, batch, None if is_last else iteration + 1)
        else:
            run = _IterationRun(self, iteration)
            batch = self._one_after_another(run)
        return SentIteration(
            iteration=iteration,
            start_seconds=start,
            calls=tuple(run.calls),
            pieces=batch.pieces,
        )

    def finish(self, running: SentIteration) -> MeasuredIteration:
        """Wait for an iteration and return what it measured."""
        self.prompts.make_next()
        reported = reported_by(running.calls)
        origin, state = self.origin_seconds, self.state
        assert origin is not None
        metrics = metrics_by_task(running.calls, reported)
        self.state = next_state(self._algorithm, self._plan.job, state, metrics)
        return MeasuredIteration(
            span=IterationSpan(
                iteration=running.iteration,
                start_seconds=running.start_seconds - origin,
                end_seconds=time.monotonic() - origin,
            ),
            spans=measured_spans(reported, running.iteration, origin),
            metrics=metrics,
            state=state,
            dropped=self._begun.sequences - self._plan.job.workload.sequences,
        )

    def bring_newest(self, done: int) -> None:  # noqa: ARG002 -- streams go by it
        """Bring the weights as they are to what generates, once what is generated ahead is there.

        What the next iteration generates with comes anew, and is the same.

        Args:
            done: Iterations.
        """
        if self._ahead is not None:
            reported_by(self._ahead[0].calls)
        self._send_transition()

    def position(self, iteration: int) -> tuple[int, tuple[int, ...]]:
        """Return the next prompt of the stream after some iterations, and those before it that are left."""
        return iteration * self._begun.prompts, ()

    def go_on_from(self, iteration: int, next_prompt: int, left: Sequence[int]) -> None:
        """Begin where a run was; whole batches need no more than the iteration's number."""

    def stop(self) -> None:
        """End what the controller itself has started: nothing."""

    def send_tasks(self, tasks: tuple[Task, ...], batch: Batch) -> list[PendingCall]:
        """Send tasks on a batch, and what brings the weights to those that generate."""
        calls: list[PendingCall] = []
        for task in self._order:
            if task not in tasks:
                continue
            if task.generates and (batch.is_first or self._reshards_every_time):
                calls += [] if self.generator_is_ready else self._send_transition()
                self.generator_is_ready = False
            if task.generates and self._plan.ends_generation_early:
                self._in_segments = self._begin_segments(task, batch)
                continue
            calls.append(self._send_task(task, batch))
        return calls

    def _one_after_another(self, run: "_IterationRun") -> Batch:
        """Send an iteration that begins when the one before has ended."""
        if self._algorithm.resamples:
            return sampled_again(run, self._plan.job)
        if self._plan.ends_generation_early:
            return ended_first(run, lambda batch: self._hand_over(run, batch))
        return one_batch(run)

    def _learn_and_generate(
        self, run: "_IterationRun", batch: Batch, following: int | None
    ) -> None:
        """Send what is left to do on a batch, and what makes the next one beside it."""
        left = left_to_do(self._order, judged=self._algorithm.resamples)
        beside = beside_generation(left, self._plan)
        one_step_off(run, batch, left, beside, lambda: self._generate_ahead(following))
        if self._ahead is not None:
            self._ahead = self._completed(*self._ahead)

    def _completed(self, run: "_IterationRun", batch: Batch) -> tuple["_IterationRun", Batch]:
        """Return an iteration with the batch that it will learn from.

        Where groups are sampled again this waits for their rewards, while the update that was sent
        before goes on; all rounds are generated with the same weights. Where more is begun than is learnt from it
        waits until enough has ended.
        """
        if self._plan.ends_generation_early:
            return run, self._hand_over(run, batch)
        if not self._algorithm.resamples:
            return run, batch
        return run, enough_groups(run, self._plan.job, batch)

    def _generated(self, iteration: int) -> tuple["_IterationRun", Batch]:
        run = _IterationRun(self, iteration)
        return run, generated(run)

    def _generate_ahead(self, iteration: int | None) -> None:
        """Send the weights as they are, and what generates with them unless nothing follows."""
        if iteration is None:
            self._send_transition()  # for a checkpoint with which a longer run may go on
        self._ahead = None if iteration is None else self._generated(iteration)

    def _send_task(self, task: Task, batch: Batch) -> PendingCall:
        """Send a task to the ranks of its pool and note where its outputs will be."""
        calls: dict[int, tuple[Any, ...]] = {}
        shares, pieces = self._shares(task, batch), batch.pieces
        for rank, share in shares.items():
            if not share:
                continue  # more ranks than prompts
            wanted = {key: overlapping(pieces[key], share) for key in task.inputs}
            call = TaskCall(
                task=task.name,
                outputs=task.outputs,
                iteration=batch.number,
                rows=share,
                inputs={key: tuple(piece.rows for piece in found) for key, found in wanted.items()},
                state=self.state,
                updates=batch.updates,
            )
            calls[rank] = (call, *(piece.reference for found in wanted.values() for piece in found))
        return self._send_calls(task, batch, shares, calls)

    def _send_calls(
        self,
        task: Task,
        batch: Batch,
        shares: Mapping[int, Rows],
        calls: Mapping[int, tuple[Any, ...]],
    ) -> PendingCall:
        """Send a task's calls, and note where the outputs of each rank's share will be."""
        pool, positions = self._plan.tasks[task.name].pool, self._places[task.name]
        protocol = PROTOCOLS.load(STAGES.load(task.kind).PROTOCOL)
        results = self._groups[pool].send("run", calls, num_returns=len(task.outputs) + 1)
        reports = results
        if task.outputs:
            reports = {rank: made[-1] for rank, made in results.items()}
        for index, key in enumerate(task.outputs):
            held = {rank: Piece(shares[rank], made[index]) for rank, made in results.items()}
            batch.pieces[key] = protocol.collect(positions, held, tuple)
        return self._calls.note(task.name, pool, "task", positions, _by_pool_rank(pool, reports))

    def _shares(self, task: Task, batch: Batch) -> Mapping[int, Rows]:
        """Return by rank the rows of a batch that it has in a task."""
        protocol = PROTOCOLS.load(STAGES.load(task.kind).PROTOCOL)
        shares: Mapping[int, Rows] = protocol.distribute(
            self._places[task.name],
            batch.rows,
            lambda whole, parts: self._split(task, batch, whole, parts),
        )
        return shares

    def _begin_segments(self, task: Task, batch: Batch) -> BatchInSegments:
        """Send the first segment of a batch of which only what ends first is wanted."""
        group = self._groups[self._plan.tasks[task.name].pool]
        places, shares = self._places[task.name], self._shares(task, batch)
        return BatchInSegments(self._plan, group, task, batch, places, shares)

    def _hand_over(self, run: "_IterationRun", begun: Batch) -> Batch:
        """Wait until enough of a batch has ended, and let replicas hand that over; return what is learnt from."""
        segments, self._in_segments = self._in_segments, None
        assert segments is not None, "its segments have begun"
        batch = replace(begun, rows=segments.chosen())
        shares, calls = segments.hand_over(batch.rows)
        run.calls.append(self._send_calls(segments.task, batch, shares, calls))
        return batch

    def _split(self, task: Task, batch: Batch, rows: Rows, parts: int) -> tuple[Rows, ...]:
        """Split rows so that the samples of one prompt stay together, and mini-batches stay equal.

        A reward function sees one response at a time: its workers share out the samples.
        """
        work = self._plan.job.workload
        if task.generates:
            return split_rows(rows, parts, block=self._begun.samples_per_prompt)
        # What ends first may be single samples of a prompt, where they are not compared.
        is_whole = self._algorithm.groups or not self._plan.ends_generation_early
        if not task.trains:
            block = work.samples_per_prompt if task.has_model and is_whole else 1
            return split_rows(rows, parts, block=block)
        block = work.samples_per_prompt if self._algorithm.groups else 1
        return split_rows(rows, parts, block=block, updates=batch.updates or work.updates)

    def _send_transition(self) -> list[PendingCall]:
        """Send what brings the actor's weights to the generate layout, if they are not there."""
        if shares_weights(self._plan):
            return []
        train, generate = self._plan.tasks["actor.update"], self._plan.tasks["actor.generate"]
        group, target = self._groups[train.pool], self._groups[generate.pool]
        if train.pool == generate.pool:
            reports = _by_pool_rank(train.pool, group.start("reshard"))
        else:
            places = task_positions(train, group.ranks)
            transport = TRANSPORTS.load(self._plan.transport)
            exports, imports = transport.send(
                group, target, places.groups()[0], self._shards, self._plan.bucket_bytes
            )
            reports = _by_pool_rank(train.pool, exports) | _by_pool_rank(generate.pool, imports)
        # One transition that holds both pools, noted on the one that receives.
        positions = generation_positions(self._plan)
        return [self._calls.note(TRANSITION, generate.pool, "transition", positions, reports)]


class _IterationRun:
    """Carry out one iteration of a controller (`rlplan.executor.control.loops.IterationRun`)."""

    def __init__(self, controller: Controller, iteration: int) -> None:
        self._controller, self.iteration = controller, iteration
        self.tasks, self.calls = controller.tasks, list[PendingCall]()

    def prompts(self, number: int) -> Batch:
        return self._controller.prompts.batch(number)

    def send(self, tasks: tuple[Task, ...], batch: Batch) -> None:
        self.calls += self._controller.send_tasks(tasks, batch)

    def fetch(self, batch: Batch, keys: tuple[str, ...]) -> Mapping[str, Array]:
        found = {}
        for key in keys:
            pieces = batch.pieces.get(key, ())
            if pieces:
                columns = ray.get([piece.reference for piece in pieces])
                held = [(p.rows, each) for p, each in zip(pieces, columns, strict=True)]
                found[key] = assemble(batch.rows, held)[key]
        return found


def _by_pool_rank(pool: str, by_rank: Mapping[int, Any]) -> dict[PoolRank, Any]:
    return {(pool, rank): value for rank, value in by_rank.items()}
