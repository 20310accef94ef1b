"""Seconds of many layouts of one infer or train task: `task_cost` in passes over arrays.

A layout's cost falls into parts that depend on few of its sizes each. A part is priced once for each of
those sizes, by the functions that price a single layout, and the parts are put together on arrays.
A law in tests/simulator holds both ways equal.
"""

from dataclasses import replace

import numpy as np

from profiles.facts import Facts
from rlplan.dataflow import Task
from rlplan.job import Job
from rlplan.plan import TaskPlan
from rlplan.precision import PRECISIONS
from simulator.costs import task_cost
from simulator.costs.layout_columns import Floats, Ints, LayoutColumns, by_kind
from simulator.costs.many_passes import ManySlots, Pricing
from simulator.costs.pricing import Setting, precision_of, setting_of
from simulator.costs.sharding import FULLY_SHARDED, gradient_seconds, weight_gather_seconds
from simulator.costs.traffic import call_seconds, data_bytes
from simulator.costs.training import optimizer_seconds
from simulator.model.weights import largest_shard
from simulator.site import Site
from simulator.workload.sequences import local_sequences, statistics_of
from simulator.workload.shared_prompts import computed_batch, waiting_fraction

MODEL_SIZES = ("tp", "pp", "ep")


def many_task_seconds(
    task: Task, columns: LayoutColumns, site: Site, job: Job, facts: Facts
) -> Floats:
    """Return the seconds of each layout of an infer or train task. Shape (layouts,).

    Raises:
        MissingFactError: Neither profile nor device sheet can price something.
    """
    if not len(columns):
        return np.zeros(0)
    batches = task.batches
    if task.kind == "train" and batches != 1:
        work = replace(job.workload, prompts=round(job.workload.prompts * batches))
        job, task = replace(job, workload=work), replace(task, batches=1.0)
    many = _ManyCosts(task, columns, site, job, facts)
    if facts.device(site.device).profile is not None or not many.is_even:
        # Measured passes are few, and uneven micro-batches rare: one by one will do.
        rows = range(len(columns))
        each = [task_cost(task, columns.layout(row), site, job, facts) for row in rows]
        return np.array([cost.total.seconds for cost in each])
    return many.train_seconds() if task.kind == "train" else many.infer_seconds() * batches


class _ManyCosts:
    """Price the parts of many layouts of one task."""

    def __init__(
        self, task: Task, columns: LayoutColumns, site: Site, job: Job, facts: Facts
    ) -> None:
        self.task, self.columns, self.site, self.job, self.facts = task, columns, site, job, facts
        self.engine, self.model = facts.engine(columns.engine), job.architecture(task.role)
        self.trains = task.kind == "train"
        self.statistics = statistics_of(job.workload)
        self.local = by_kind(columns, ("dp",), lambda layout: (self._local(layout.dp),))[0]
        self.local = self.local.astype(np.int64)

    @property
    def is_even(self) -> bool:
        """Tell whether all micro-batches of every layout are equal."""
        return not np.any(self.local % self.columns.micro_batch)

    @property
    def counts(self) -> Ints:
        """Return the micro-batches of one data-parallel rank, of one update where it trains."""
        return np.asarray(self.local // self.columns.micro_batch)

    def infer_seconds(self) -> Floats:
        """Return what `infer_cost` adds up to."""
        slots = self._slots()
        forward = slots.forward[0] * self.counts
        seconds = self._pipeline(slots) + self.engine.step_seconds * self.counts
        gathers = self._gathers() * np.where(self.columns.zero == FULLY_SHARDED, self.counts, 0)
        seconds += self._exposed(gathers, forward)
        seconds += np.where(self.columns.offload > 0, self._copied("weights"), 0.0)
        return seconds + self._calls()

    def train_seconds(self) -> Floats:
        """Return what `train_cost` adds up to."""
        slots, columns, counts = self._slots(), self.columns, self.counts
        seconds = self._pipeline(slots) + self.engine.step_seconds * counts
        backward = slots.backward[0]
        everything = slots.forward[0] + backward + slots.recompute[0]
        behind = np.where(columns.zero == FULLY_SHARDED, everything * counts, backward * counts)
        hideable = np.where(columns.zero <= 1, backward, behind)
        seconds += self._exposed(self._reductions(), hideable)
        seconds += self._optimizer()
        updates = self.job.workload.updates * self.job.workload.epochs
        seconds *= updates
        seconds += np.where(columns.offload > 0, self._copied("optimizer"), 0.0)
        return seconds + self._calls()

    def _local(self, dp: int) -> int:
        updates = self.job.workload.updates if self.trains else None
        return local_sequences(self.job, dp, updates=updates)

    def _setting(self, layout: TaskPlan) -> Setting:
        return setting_of(layout, self.site, precision_of(self.job), self.facts)

    def _slots(self) -> ManySlots:
        pricing = Pricing(
            self.model,
            self.task.head,
            self._setting,
            lambda size: computed_batch(self.engine, self.statistics, size),
            trains=self.trains,
        )
        return pricing.slots(self.columns)

    def _pipeline(self, slots: ManySlots) -> Floats:
        """Return `pipeline_parts` and `uneven_lengths`, added up."""
        columns, counts = self.columns, self.counts
        work = (slots.forward + slots.backward + slots.recompute).sum(axis=0) * counts
        chunks = columns.chunks if self.trains else np.ones_like(columns.chunks)
        ways = 2 if self.trains else 1
        between = (columns.pp > 2) | (chunks > 1)  # noqa: PLR2004 -- a first and a last stage
        each = np.where(between, ways, 1)  # as `send_counts`
        sends = slots.send * (each * chunks * counts + ways * (columns.pp - 1) - each)
        uneven = by_kind(columns, ("dp", "micro_batch"), self._straggler)[0]
        return np.asarray(
            work * (1 + uneven) + slots.others / chunks + np.where(columns.pp > 1, sends, 0.0)
        )

    def _straggler(self, layout: TaskPlan) -> tuple[float]:
        local = self._local(layout.dp)
        sizes = (local, layout.micro_batch, layout.dp)
        return (waiting_fraction(self.engine, self.statistics, *sizes),)

    def _exposed(self, whole: Floats, hideable: Floats) -> Floats:
        """Return what of communication does not hide behind computing."""
        return whole - np.minimum(self.engine.overlap_fraction * whole, hideable)

    def _parameters(self, layout: TaskPlan) -> int:
        return largest_shard(self.model, self.task.head, layout.tp, layout.pp, layout.ep)

    def _gathers(self) -> Floats:
        """Return the seconds of gathering fully sharded weights once; 0 where they are not."""

        def once(layout: TaskPlan) -> tuple[float]:
            parameters = self._parameters(layout)
            parts = weight_gather_seconds(self._setting(layout), layout, parameters, 1)
            return (sum(part.seconds for part in parts.values()),)

        return np.asarray(by_kind(self.columns, (*MODEL_SIZES, "dp", "cp", "zero"), once)[0])

    def _reductions(self) -> Floats:
        """Return what data-parallel ranks exchange in one update, nothing hidden."""

        def once(layout: TaskPlan) -> tuple[float, float]:
            parameters = self._parameters(layout)
            parts = gradient_seconds(self._setting(layout), layout, parameters, 1)
            found = [parts.get(name) for name in ("gradient reduction", "weight gathers")]
            reduced, gathered = (part.seconds if part else 0.0 for part in found)
            return reduced, gathered

        columns = self.columns
        reduced, gathered = by_kind(columns, (*MODEL_SIZES, "dp", "cp", "zero"), once)
        reductions = np.where(columns.zero > 1, self.counts, 1)
        gathers = np.where(columns.zero == FULLY_SHARDED, self.counts, 1)
        return np.asarray(reduced * reductions + gathered * gathers)

    def _optimizer(self) -> Floats:
        def step(layout: TaskPlan) -> tuple[float]:
            parameters = self._parameters(layout)
            return (optimizer_seconds(self._setting(layout), layout, parameters).seconds,)

        sharded = replace(self.columns, zero=np.minimum(self.columns.zero, 1))
        return np.asarray(by_kind(sharded, (*MODEL_SIZES, "dp", "cp", "zero"), step)[0])

    def _copied(self, what: str) -> Floats:
        """Return the seconds of bringing weights from host memory, or optimizer states there and back."""
        device, sizes = self.facts.device(self.site.device), PRECISIONS[precision_of(self.job)]

        def copies(layout: TaskPlan) -> tuple[float]:
            parameters = self._parameters(layout)
            if what == "weights":
                num_bytes = parameters * sizes.weight_bytes
                return (device.copy(num_bytes, "host_to_device").seconds,)
            ranks = layout.dp * layout.cp if layout.zero else 1
            num_bytes = parameters * sizes.optimizer_bytes // ranks
            there = device.copy(num_bytes, "device_to_host").seconds
            return (device.copy(num_bytes, "host_to_device").seconds + there,)

        sharded = replace(self.columns, zero=np.minimum(self.columns.zero, 1))
        return np.asarray(by_kind(sharded, (*MODEL_SIZES, "dp", "cp", "zero"), copies)[0])

    def _calls(self) -> Floats:
        device, precision = self.facts.device(self.site.device), precision_of(self.job)
        num_bytes = data_bytes(self.task.inputs, self.job.workload)

        def call(layout: TaskPlan) -> tuple[float]:
            each = num_bytes // layout.dp
            return (call_seconds(device, self.model, precision, each).seconds,)

        return np.asarray(by_kind(self.columns, ("dp",), call)[0])
