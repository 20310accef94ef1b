"""Runs a plan as `execute` does, and keeps what it does not: tokens and weights.

All tests share one table of runs: what a plan does from a seed is the same for every test that asks.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import ray

from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.control.controller import Controller
from rlplan.executor.control.start import join_all, prepare_groups
from rlplan.executor.control.summary import iteration_metrics
from rlplan.executor.data.workload import PromptBatches, job_of_batches
from rlplan.executor.workers.host_worker import HostWorker
from rlplan.executor.workers.pools import WorkerGroup, start_group
from rlplan.executor.workers.processes.ray_session import DEVICE, HOST
from rlplan.executor.workers.protocols import registered
from rlplan.executor.workers.worker import Worker, leave_process_group

# Workers to begin with; plans that need more get them when they come.
DEVICES = 4
# An update, and what is generated and learnt with the weights that it left.
ITERATIONS = 2


@dataclass
class Record:
    """Hold a run: metrics and tokens by iteration, spans, and weights at the end."""

    metrics: list = field(default_factory=list)
    tokens: list = field(default_factory=list)
    finished: list = field(default_factory=list)
    actor: list = field(default_factory=list)
    generator: list = field(default_factory=list)
    moved: list = field(default_factory=list)


class ReusedWorker(Worker):
    """Leave the process group of the plan before, and what torch remembers of its meshes."""

    @registered("all-to-all")
    def join(self, place):
        leave_process_group()
        super().join(place)

    @registered("one-to-all")
    def apply(self, function):
        """Return what a function of (rank, ranks) returns here."""
        return function(self._place.rank, self._place.ranks)


class LentGroup(WorkerGroup):
    """Give workers back where others would be ended."""

    def __init__(self, worker, actors, free):
        super().__init__(worker, actors)
        self._free = free

    def stop(self):
        self._free += self._actors


class WorkerPool:
    """Keep workers between plans, who take up a new plan in a second and not in ten."""

    def __init__(self, worker=ReusedWorker):
        self._worker, self._records = worker, {}
        self._start()

    def _start(self):
        self.devices = [start_group(self._worker, DEVICES, DEVICE)]
        self.host = start_group(HostWorker, 1, HOST)
        self._free = None

    def renew(self):
        """End all workers, whatever they wait for, and begin with new ones."""
        self.stop()
        self._start()

    def lend(self, worker, ranks, slot, *, cuda=False):
        """Return workers for a pool that would start its own, as `start_group` does."""
        assert not cuda
        if slot == HOST:
            return LentGroup(worker, self.host._actors, [])
        if self._free is None:
            self._free = self.workers(DEVICES)
        taken = [self._free.pop() for _ in range(ranks)]
        return LentGroup(self._worker, taken, self._free)

    def workers(self, count):
        """Return the actors of at least as many workers."""
        while count > DEVICES * len(self.devices):
            self.devices.append(start_group(self._worker, DEVICES, DEVICE))
        return [actor for group in self.devices for actor in group._actors]

    def on_ranks(self, ranks, function):
        """Return what a function of (rank, ranks) returns on each rank of one process group."""
        group = WorkerGroup(self._worker, self.workers(ranks)[:ranks])
        join_all({group: "cpu"})
        return group.call("apply", function)

    def groups_of(self, plan):
        groups, taken = {}, 0
        workers = self.workers(sum(pool.gpus for pool in plan.pools if not pool.is_host))
        for pool in plan.pools:
            if pool.is_host:
                groups[pool.name] = self.host
                continue
            actors = workers[taken : taken + pool.gpus]
            groups[pool.name] = WorkerGroup(self._worker, actors)
            taken += pool.gpus
        return groups

    def run(self, plan, iterations=ITERATIONS, seed=1, numbers=None):
        """Return what a plan does in some iterations, or in those of some numbers; run it once."""
        numbers = numbers or tuple(range(iterations))
        key = plan, numbers, seed
        if key not in self._records:
            self._records[key] = self.carry_out(plan, numbers, seed)
        return self._records[key]

    def carry_out(self, plan, numbers=tuple(range(ITERATIONS)), seed=1):
        """Run iterations of a plan now; return what they did."""
        tasks, groups = check_runnable(plan), self.groups_of(plan)
        prompts = PromptBatches(job_of_batches(plan), Path())
        prepare_groups(plan, tasks, prompts, seed, groups)
        controller = Controller(plan, tasks, groups, prompts.columns)
        record = Record()
        for iteration in numbers:
            running = controller.send(iteration, is_last=iteration == numbers[-1])
            record.finished.append(controller.finish(running))
            record.metrics.append(iteration_metrics(plan, tasks, record.finished[-1]))
            record.tokens.append(collected(running, "sequences", "tokens"))
        controller.stop()
        train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
        record.actor = groups[train.pool].call("weights", "actor")
        # The transition that the next iteration would begin with.
        for call in controller.dispatcher.send_transition():
            record.moved = [report.metrics for report in ray.get(list(call.reports.values()))]
        record.generator = groups[generate.pool].call("weights", "generator")
        return record

    def stop(self):
        for group in self.devices:
            group.stop()
        self.host.stop()


def collected(running, key, column):
    pieces = ray.get([piece.reference for piece in running.pieces[key]])
    return np.concatenate([piece[column] for piece in pieces])
