"""The single controller: it walks the dataflow, sends every call at once, and sees references only.

A worker starts a task when it is the task's turn on its pool and the inputs are there, so a model
on another pool starts as soon as its inputs exist, without a word from here.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from executor.batches import Columns, Piece, Rows, overlapping, split_rows
from executor.calls import CallReport, TaskCall
from executor.layouts import generation_positions, shares_weights
from executor.pools import WorkerGroup, fetched
from executor.protocols import DP_METRIC, DP_PROTO, RankPositions, reduce_metrics, train_positions
from executor.spans import Reported, Seat, measured_spans
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, parents_of
from rlplan.plan import Plan
from rlplan.trace import Activity, IterationSpan, Span

TRANSITION = "transition"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Hold a call that was sent: where it runs, and by seat the reference of its report.

    Attributes:
        parents: Calls whose outputs it waits for, by name.
    """

    name: str
    pool: str
    activity: Activity
    positions: RankPositions
    reports: Mapping[Seat, Any]
    parents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Hold an iteration that was sent off."""

    iteration: int
    start_seconds: float
    calls: tuple[Sent, ...]
    # Keeps the objects of the iteration alive until it is finished.
    pieces: Mapping[str, tuple[Piece, ...]] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Hold what an iteration measured: its spans, and by task the metrics of all its ranks."""

    span: IterationSpan
    spans: tuple[Span, ...]
    metrics: Mapping[str, Mapping[str, float]]


class Controller:
    """Run iterations of a plan on worker groups.

    Args:
        groups: By pool.
        prompts: Returns the prompts of an iteration as columns.
    """

    def __init__(
        self,
        plan: Plan,
        tasks: tuple[Task, ...],
        groups: Mapping[str, WorkerGroup],
        prompts: Callable[[int], Columns],
    ) -> None:
        self._plan, self._groups, self._prompts = plan, groups, prompts
        self._order = sending_order(plan, tasks)
        self._grouped = load_algorithm(plan.job.algorithm).groups
        self._origin_seconds: float | None = None
        # What the ranks of another pool generate with, so that each gets just its part.
        self._shards: list[Any] = []
        train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
        if train.pool != generate.pool:
            self._shards = groups[generate.pool].call("holding")

    def send(self, iteration: int) -> Running:
        """Send all calls of an iteration."""
        start = time.time()
        if self._origin_seconds is None:
            self._origin_seconds = start
        rows: Rows = ((0, self._plan.job.workload.sequences),)
        prompts = Piece(rows, ray.put(self._prompts(iteration)))
        pieces: dict[str, tuple[Piece, ...]] = {"prompts": (prompts,)}
        calls: list[Sent] = []
        for task in self._order:
            if task.kind == "generate":
                calls += self._send_transition()
            calls.append(self._send_task(task, iteration, rows, pieces))
        return Running(iteration=iteration, start_seconds=start, calls=tuple(calls), pieces=pieces)

    def finish(self, running: Running) -> Finished:
        """Wait for an iteration and return what it measured."""
        references = {
            (index, seat): reference
            for index, call in enumerate(running.calls)
            for seat, reference in call.reports.items()
        }
        reports = fetched(references)
        reported = [
            Reported(
                name=call.name,
                pool=call.pool,
                activity=call.activity,
                reports={seat: reports[index, seat] for seat in call.reports},
                parents=call.parents,
            )
            for index, call in enumerate(running.calls)
        ]
        origin = self._origin_seconds
        assert origin is not None
        return Finished(
            span=IterationSpan(
                iteration=running.iteration,
                start_seconds=running.start_seconds - origin,
                end_seconds=time.time() - origin,
            ),
            spans=measured_spans(reported, running.iteration, running.start_seconds, origin),
            metrics={
                call.name: _metrics(call, done.reports)
                for call, done in zip(running.calls, reported, strict=True)
                if call.activity == "task"
            },
        )

    def _send_task(
        self, task: Task, iteration: int, rows: Rows, pieces: dict[str, tuple[Piece, ...]]
    ) -> Sent:
        """Send a task to the ranks of its pool and note where its outputs will be."""
        pool = self._plan.tasks[task.name].pool
        group = self._groups[pool]
        positions, protocol = self._positions(task), group.protocol(task.kind)
        shares = protocol.distribute(
            positions, rows, lambda whole, parts: self._split(task, whole, parts)
        )
        if protocol is DP_PROTO:
            shares = {rank: share for rank, share in shares.items() if share}
        calls = {
            rank: TaskCall(
                task=task,
                iteration=iteration,
                rows=share,
                inputs={key: overlapping(pieces[key], share) for key in task.inputs},
            )
            for rank, share in shares.items()
        }
        results = group.send(task.kind, calls, num_returns=len(task.outputs) + 1)
        reports = results
        if task.outputs:
            reports = {rank: made[-1] for rank, made in results.items()}
        for index, key in enumerate(task.outputs):
            held = {rank: Piece(shares[rank], made[index]) for rank, made in results.items()}
            pieces[key] = protocol.collect(positions, held, tuple)
        return Sent(
            name=task.name,
            pool=pool,
            activity="task",
            positions=positions,
            reports=_seats(pool, reports),
            parents=tuple(parent.name for parent in parents_of(task, self._order)),
        )

    def _positions(self, task: Task) -> RankPositions:
        if task.kind == "generate":
            return generation_positions(self._plan)
        layout = self._plan.tasks[task.name]
        ranks = self._plan.pool_of(task.name).gpus
        if task.kind == "rule":
            return train_positions(1, ranks)
        return train_positions(layout.tp, ranks, layout.pp)

    def _split(self, task: Task, rows: Rows, parts: int) -> tuple[Rows, ...]:
        """Split rows so that the samples of one prompt stay together, and mini-batches stay equal."""
        work = self._plan.job.workload
        if task.kind != "train":
            return split_rows(rows, parts, block=work.samples_per_prompt)
        block = work.samples_per_prompt if self._grouped else 1
        return split_rows(rows, parts, block=block, updates=work.updates)

    def _send_transition(self) -> list[Sent]:
        """Send what brings the actor's weights to the generate layout, if they are not there."""
        if shares_weights(self._plan):
            return []
        train, generate = self._plan.tasks["actor.update"], self._plan.tasks["actor.generate"]
        group, target = self._groups[train.pool], self._groups[generate.pool]
        if train.pool == generate.pool:
            reports = _seats(train.pool, group.start("reshard"))
        else:
            results = group.send(
                "export_weights", dict.fromkeys(range(group.ranks), self._shards), num_returns=2
            )
            exports = {rank: result[1] for rank, result in results.items()}
            places = train_positions(train.tp, group.ranks, train.pp)
            holders = [results[rank][0] for rank in places.groups()[0]]
            imports = target.start("import_weights", holders)
            reports = _seats(train.pool, exports) | _seats(generate.pool, imports)
        # One transition that holds both pools, noted on the one that receives.
        return [
            Sent(
                name=TRANSITION,
                pool=generate.pool,
                activity="transition",
                positions=generation_positions(self._plan),
                reports=reports,
            )
        ]


def _seats(pool: str, by_rank: Mapping[int, Any]) -> dict[Seat, Any]:
    return {(pool, rank): value for rank, value in by_rank.items()}


def _metrics(call: Sent, reports: Mapping[Seat, CallReport]) -> dict[str, float]:
    """Return a task's metrics over its data-parallel groups."""
    metrics = {rank: report.metrics for (_, rank), report in reports.items()}
    if len(metrics) < call.positions.ranks:  # idle rule workers
        return reduce_metrics([metrics[rank] for rank in sorted(metrics)])
    reduced: dict[str, float] = DP_METRIC.collect(call.positions, metrics, reduce_metrics)
    return reduced


def sending_order(plan: Plan, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """Return all tasks after their parents, and by the plan's order where tasks wait for one pool.

    The order is a priority: a task that is ready does not wait for one that comes earlier in the
    order but whose inputs are not made yet.
    """
    rank = {name: position for order in plan.order.values() for position, name in enumerate(order)}
    waiting, sent = list(tasks), dict[str, Task]()
    while waiting:
        ready = [t for t in waiting if all(p.name in sent for p in parents_of(t, tasks))]
        assert ready, "a dataflow has no cycles"
        pool = plan.tasks[ready[0].name].pool
        task = min(
            (t for t in ready if plan.tasks[t.name].pool == pool), key=lambda t: rank[t.name]
        )
        waiting.remove(task)
        sent[task.name] = task
    return tuple(sent.values())
