"""Dispatch: to which ranks a task's calls go, with which rows, and where its outputs will be.

A worker starts a task when the pool is free for it and the inputs are there, so a model
on another pool starts as soon as its inputs exist, without another message.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import DATASET_KEYS, Task
from rlplan.executor.control.pending_calls import CallLog, PendingCall, PoolRank, sending_order
from rlplan.executor.data.batches import (
    ROUND_STRIDE,
    Columns,
    Piece,
    Rows,
    count_rows,
    overlapping,
    split_rows,
)
from rlplan.executor.data.workload import job_of_batches
from rlplan.executor.learning.multiplier import initial_state
from rlplan.executor.parallel.positions import (
    RankPositions,
    generation_positions,
    shares_weights,
    task_positions,
)
from rlplan.executor.workers.calls import TaskCall
from rlplan.executor.workers.pools import WorkerGroup
from rlplan.executor.workers.protocols import PROTOCOLS
from rlplan.executor.workers.stages import STAGES
from rlplan.executor.workers.transports import TRANSPORTS
from rlplan.plan import BUCKET_BYTES, Plan

TRANSITION = "transition"


# Batches of prompts for the workers, each put out before it is needed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Hold what is known of some rows: by data key, references of pieces.

    Attributes:
        number: Of the batch of prompts: the iteration, or a number of its own when sampled again.
        pieces: Tasks add what they make.
        updates: Optimizer steps that its rows are for, in one pass over them; None: those of the job.
    """

    number: int
    rows: Rows
    pieces: dict[str, tuple[Piece, ...]]
    updates: int | None = None

    @property
    def is_first(self) -> bool:
        """Tell whether it is an iteration's first batch, and not sampled in place of another."""
        return self.number < ROUND_STRIDE


Pieces = dict[str, tuple[Piece, ...]]


class PromptPieces:
    """Put batches of prompts out for workers to fetch.

    Args:
        prompts: Returns the prompts of a batch as columns, and the texts that are mixed in.
        sequences: Rows of a batch.
    """

    def __init__(self, prompts: Callable[[int], Columns], sequences: int) -> None:
        self._prompts, self._rows = prompts, Rows(((0, sequences),))
        self._next: int | None = None
        self._ahead: dict[int, Pieces] = {}

    def batch(self, number: int) -> Batch:
        """Return references to the batch of that number: prompts, and texts where they are mixed in."""
        pieces = self._ahead.pop(number, None) or self._put_out(number)
        if number < ROUND_STRIDE:
            self._next = number + 1
        return Batch(number=number, rows=self._rows, pieces=pieces)

    def make_next(self) -> None:
        """Put out the batch of the next iteration, while workers are busy with this one's."""
        if self._next is not None and self._next not in self._ahead:
            self._ahead = {self._next: self._put_out(self._next)}

    def _put_out(self, number: int) -> Pieces:
        columns = self._prompts(number)
        pieces: Pieces = {}
        for key in DATASET_KEYS:
            own = {
                name: column
                for name, column in columns.items()
                if name.startswith("pretrain_") == (key == "pretrain")
            }
            if own:
                pieces[key] = (Piece(self._rows, ray.put(own)),)
        return pieces


class Dispatcher:
    """Send the tasks of a plan, and its transition of weights, to worker groups; every call returns at once.

    Args:
        groups: By pool.

    Attributes:
        tasks: Those of an iteration, as its algorithm lists them.
        order: The same in the order in which they are sent.
        state: What the algorithm carries from iteration to iteration, by name; tasks are sent with it.
        generator_is_ready: Whether what generates has the weights for the next batch already, from a
            checkpoint.
    """

    def __init__(
        self, plan: Plan, tasks: tuple[Task, ...], groups: Mapping[str, WorkerGroup]
    ) -> None:
        self._plan, self._groups = plan, groups
        self._begun = job_of_batches(plan).workload
        self._algorithm = load_algorithm(plan.job.algorithm)
        self.tasks, self.order = tasks, sending_order(plan, tasks)
        self.state: dict[str, float] = initial_state(self._algorithm, plan.job)
        self.generator_is_ready = False
        self._places = {
            task.name: STAGES.load(task.kind).positions(plan, task) for task in self.order
        }
        self._calls = CallLog()
        # What the ranks of another pool generate with, so that each gets just its part.
        self._shards: list[Any] = []
        train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
        if train.pool != generate.pool:
            self._shards = groups[generate.pool].call("shard_layout")

    def group(self, task: Task) -> WorkerGroup:
        """Return the workers of a task's pool."""
        return self._groups[self._plan.tasks[task.name].pool]

    def positions(self, task: Task) -> RankPositions:
        """Return where the ranks of a task stand."""
        return self._places[task.name]

    def send(self, task: Task, batch: Batch) -> PendingCall:
        """Send a task to the ranks of its pool and note where its outputs will be."""
        calls: dict[int, tuple[Any, ...]] = {}
        shares, pieces = self.shares(task, batch), batch.pieces
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
        return self.send_calls(task, batch, shares, calls)

    def send_calls(
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

    def shares(self, task: Task, batch: Batch) -> Mapping[int, Rows]:
        """Return by rank the rows of a batch that it has in a task."""
        protocol = PROTOCOLS.load(STAGES.load(task.kind).PROTOCOL)
        shares: Mapping[int, Rows] = protocol.distribute(
            self._places[task.name],
            batch.rows,
            lambda whole, parts: self._split(task, batch, whole, parts),
        )
        return shares

    def bring_weights(self) -> list[PendingCall]:
        """Send the weights as they are to what generates, unless it has them from a checkpoint."""
        is_ready, self.generator_is_ready = self.generator_is_ready, False
        return [] if is_ready else self.send_transition()

    def send_transition(self) -> list[PendingCall]:
        """Send what brings the actor's weights to the generate layout, if that has a copy of its own."""
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
                group,
                target,
                places.groups()[0],
                self._shards,
                self._plan.bucket_bytes or BUCKET_BYTES,
            )
            reports = _by_pool_rank(train.pool, exports) | _by_pool_rank(generate.pool, imports)
        # One transition that holds both pools, noted on the one that receives.
        positions = generation_positions(self._plan)
        return [self._calls.note(TRANSITION, generate.pool, "transition", positions, reports)]

    def _split(self, task: Task, batch: Batch, rows: Rows, parts: int) -> tuple[Rows, ...]:
        """Split rows so that the samples of one prompt stay together, and mini-batches stay equal.

        A reward function sees one response at a time: its workers share out the samples.
        """
        work = self._plan.job.workload
        if task.generates:
            return split_rows(rows, parts, block=self._begun.samples_per_prompt)
        if task.trains:
            block = work.samples_per_prompt if self._algorithm.groups else 1
            return split_rows(rows, parts, block=block, updates=batch.updates or work.updates)
        # What ends first may be single samples of a prompt, where they are not compared; what was lost with a part of
        # the transfer queue may leave a part of a prompt's samples.
        is_whole = self._algorithm.groups or not self._plan.ends_generation_early
        is_whole = is_whole and not count_rows(rows) % work.samples_per_prompt
        block = work.samples_per_prompt if task.has_model and is_whole else 1
        return split_rows(rows, parts, block=block)


def _by_pool_rank(pool: str, by_rank: Mapping[int, Any]) -> dict[PoolRank, Any]:
    return {(pool, rank): value for rank, value in by_rank.items()}
