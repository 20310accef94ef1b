"""Bytes of many layouts of one infer or train task: `task_memory` in passes over arrays."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from profiles.facts import Facts
from rlplan.dataflow import Task
from rlplan.job import Job
from rlplan.plan import TaskPlan
from rlplan.precision import PRECISIONS
from simulator.costs.layout_columns import Floats, Ints, LayoutColumns, by_kind
from simulator.costs.pipeline import layers_of_stages
from simulator.costs.pricing import precision_of, shard_of
from simulator.costs.sharding import FULLY_SHARDED
from simulator.memory.task_memory import FRAGMENTATION_FRACTION, GATHERED_LAYERS, GRADIENTS_SHARDED
from simulator.model.activations import layer_activation_bytes, logits_bytes
from simulator.model.weights import layer_parameters, shard_parameters
from simulator.site import Site
from simulator.workload.sequences import local_sequences, statistics_of
from simulator.workload.shared_prompts import least_shared_tokens


@dataclass(frozen=True, slots=True, eq=False)
class ManyBytes:
    """Hold what each layout puts on its fullest GPU.

    Attributes:
        weights: Resident weights, which tasks of one role share; 0 where they come and go.
        resident: All that stays while other tasks run, those weights included.
        transient: What lives as long as the task.
    """

    weights: Ints
    resident: Ints
    transient: Ints


def many_task_bytes(
    task: Task, columns: LayoutColumns, site: Site, job: Job, facts: Facts
) -> ManyBytes:
    """Return the bytes of each layout on its fullest pipeline stage, the first or the last."""
    if not len(columns):
        return ManyBytes(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
    many = _ManyTerms(task, columns, site, job, facts)
    first = many.stage(np.zeros_like(columns.pp))
    last = many.stage(columns.pp - 1)
    later = last.resident + last.transient > first.resident + first.transient
    return ManyBytes(
        np.where(later, last.weights, first.weights),
        np.where(later, last.resident, first.resident),
        np.where(later, last.transient, first.transient),
    )


class _ManyTerms:
    """Add up the terms of many layouts of one task."""

    def __init__(
        self, task: Task, columns: LayoutColumns, site: Site, job: Job, facts: Facts
    ) -> None:
        self.task, self.columns, self.site, self.job, self.facts = task, columns, site, job, facts
        self.engine, self.model = facts.engine(columns.engine), job.architecture(task.role)
        self.sizes, self.trains = PRECISIONS[precision_of(job)], task.kind == "train"
        self.longest = statistics_of(job.workload).longest_tokens
        self.local = _whole(by_kind(columns, ("dp",), lambda layout: (self._local(layout),)))[0]
        names = ("tp", "cp", "ep", "dp", "micro_batch", "recompute")
        self.kept, self.working, self.logits = _whole(by_kind(columns, names, self._micro_batch))

    def stage(self, stage: Ints) -> ManyBytes:
        """Return what one GPU of a pipeline stage of each layout holds."""
        columns, sizes = self.columns, self.sizes
        is_last = stage == columns.pp - 1
        parameters, layers, gathered = _whole(by_kind(columns, ("tp", "pp", "ep"), self._shards))[
            np.array([[0, 1, 4], [2, 3, 4]])[(is_last & (columns.pp > 1)).astype(int)].T,
            np.arange(len(columns)),
        ]
        ranks, zero, away = columns.ranks, columns.zero, columns.offload > 0
        held = np.where(zero == FULLY_SHARDED, -(-parameters // ranks), parameters)
        weights = held * sizes.weight_bytes
        stays = np.ones_like(away) if self.trains else ~away
        resident, transient = np.where(stays, weights, 0), np.where(stays, 0, weights)
        gathers = (zero == FULLY_SHARDED) & (ranks > 1)
        transient += np.where(gathers, gathered * sizes.weight_bytes, 0)
        if self.trains:
            shared = np.where(zero >= GRADIENTS_SHARDED, -(-parameters // ranks), parameters)
            gradients = shared * sizes.gradient_bytes
            stepped = np.where(zero > 0, -(-parameters // ranks), parameters)
            states = stepped * sizes.optimizer_bytes
            if not sizes.master_bytes:
                copied = (zero == GRADIENTS_SHARDED) & (ranks > 1)
                resident += np.where(copied, shared * sizes.weight_bytes, 0)
            resident += np.where(away, 0, states)
            transient += np.where(away, states, 0)
            if self.engine.keeps_gradients:
                resident += gradients
            else:
                transient += gradients
        transient += self._working(stage, layers, is_last)
        transient += self.facts.device(self.site.device).context_bytes
        return ManyBytes(np.where(stays, weights, 0), resident, transient)

    def _working(self, stage: Ints, layers: Ints, is_last: Ints) -> Ints:
        """Return activations and logits with their margin."""
        columns = self.columns
        num_passes = -(-self.local // columns.micro_batch) * columns.chunks
        warm_up = 2 * (columns.pp - stage - 1) + (columns.chunks - 1) * columns.pp + 1
        in_flight = np.where(columns.chunks == 1, columns.pp - stage, warm_up)
        own = self.kept * np.minimum(num_passes, in_flight) * layers // columns.chunks
        own += self.working
        own += np.where(is_last, self.logits, 0)
        return np.asarray(own + np.rint(FRAGMENTATION_FRACTION * own).astype(np.int64))

    def _local(self, layout: TaskPlan) -> int:
        updates = self.job.workload.updates if self.trains else None
        return local_sequences(self.job, layout.dp, updates=updates)

    def _shards(self, layout: TaskPlan) -> tuple[int, int, int, int, int]:
        """Return parameters and layers of the first and of the last stage, and of gathered layers."""
        counts = layers_of_stages(self.model.num_layers, layout.pp)
        sizes = (self.model, self.task.head, layout.tp, layout.pp)
        return (
            shard_parameters(*sizes, 0, layout.ep),
            counts[0],
            shard_parameters(*sizes, layout.pp - 1, layout.ep),
            counts[-1],
            GATHERED_LAYERS * layer_parameters(self.model, layout.tp, layout.ep),
        )

    def _micro_batch(self, layout: TaskPlan) -> tuple[int, int, int]:
        """Return what a layer keeps of a micro-batch, its whole set, and the logits."""
        shard = shard_of(layout, precision_of(self.job), self.engine)
        sequences = min(layout.micro_batch, self._local(layout))
        shared = least_shared_tokens(self.engine, self.job.workload, sequences)
        held = partial(
            layer_activation_bytes,
            self.model,
            shard,
            sequences,
            self.longest,
            fused_attention=self.engine.fused_attention,
            shared_tokens=shared,
        )
        working, kept, logits = held("none"), 0, 0
        if self.trains:
            kept = held(layout.recompute)
        if self.task.head == "lm":
            width = -(-(sequences * self.longest - shared) // layout.cp)
            logits = logits_bytes(
                self.model, layout.tp, width, shard.value_bytes, backward=self.trains
            )
        return kept, working, logits


def _whole(numbers: Floats) -> Ints:
    """Return whole numbers, which floats of 53 bits carry exactly."""
    return numbers.astype(np.int64)
