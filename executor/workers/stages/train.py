"""Updates of a model on this rank's share of every mini-batch."""

from dataclasses import replace
from typing import Any

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task
from rlplan.errors import DivergedError
from rlplan.executor.data.batches import Columns
from rlplan.executor.learning.experience import effective_settings, make_experience
from rlplan.executor.learning.train import update_model
from rlplan.executor.parallel.meshes import reduce_sum_over_dp
from rlplan.executor.parallel.positions import RankPositions, task_positions
from rlplan.executor.workers.calls import Outcome, TaskCall, run_task
from rlplan.executor.workers.worker import PoolModels
from rlplan.job import Job
from rlplan.plan import Plan

PROTOCOL = "three-d"


def positions(plan: Plan, task: Task) -> RankPositions:
    """Return where the pool's ranks stand while they train."""
    return task_positions(plan.tasks[task.name], plan.pool_of(task.name).gpus)


class Stage:
    """Train a role's model."""

    def __init__(self, pool: PoolModels, task: Task) -> None:
        self._pool, self._shard = pool, pool.shard_of(task)
        self._micro_batch = pool.setup.plan.tasks[task.name].micro_batch
        assert task.loss is not None
        self._loss = task.loss
        self._algorithm = load_algorithm(pool.setup.plan.job.algorithm)

    def run(self, call: TaskCall, pieces: tuple[Columns, ...]) -> Any:
        """Update the model."""
        leads = self._shard.mesh.leads
        return run_task(call, pieces, lambda columns: self._train(call, columns), leads=leads)

    def _train(self, call: TaskCall, columns: Columns) -> Outcome:
        job = _for_call(self._pool.setup.plan.job, call)
        batch, sums = make_experience(
            job,
            self._algorithm,
            {name: self._pool.tensor(column) for name, column in columns.items()},
            call.state,
            reduce_sum_over_dp(self._shard.mesh),
        )
        with self._shard.states_on_device():
            losses = update_model(
                self._shard,
                batch,
                self._loss,
                effective_settings(self._algorithm, job.hyperparameters, call.state),
                updates=job.workload.updates,
                epochs=job.workload.epochs,
                micro_batch=self._micro_batch,
            )
            trainer = self._shard.trainer
            if trainer is not None and not trainer.has_finite_weights():
                raise DivergedError("weights are not finite after its updates")
        return {}, {**losses, **sums}


def _for_call(job: Job, call: TaskCall) -> Job:
    """Return the job as a call has it: it may be for some of an iteration's updates."""
    if call.updates is None:
        return job
    return replace(job, workload=replace(job.workload, updates=call.updates, epochs=1))
