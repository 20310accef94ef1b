"""Forward-only tasks: log-probabilities, values and scores of whole sequences."""

from typing import Any

from rlplan.dataflow import Task
from rlplan.executor.data.batches import Columns, column_of, sequences_for
from rlplan.executor.parallel.positions import RankPositions, task_positions
from rlplan.executor.passes import infer
from rlplan.executor.workers.calls import Outcome, TaskCall, run_task
from rlplan.executor.workers.worker import PoolModels, as_array
from rlplan.plan import Plan

PROTOCOL = "three-d"


def positions(plan: Plan, task: Task) -> RankPositions:
    """Return where the pool's ranks stand while they infer."""
    return task_positions(plan.tasks[task.name], plan.pool_of(task.name).gpus)


class Stage:
    """Run a role's model forward; one that is trained on the pool is that shard."""

    def __init__(self, pool: PoolModels, task: Task) -> None:
        self._pool, self._shard = pool, pool.shard_of(task)
        self._micro_batch = pool.setup.plan.tasks[task.name].micro_batch

    def run(self, call: TaskCall, pieces: tuple[Columns, ...]) -> Any:
        """Run the task on this rank's rows."""
        leads = self._shard.mesh.leads
        return run_task(call, pieces, lambda columns: self._infer(call, columns), leads=leads)

    def _infer(self, call: TaskCall, columns: Columns) -> Outcome:
        outputs: dict[str, Columns] = {}
        with self._shard.weights_on_device():
            for output in call.outputs:
                tokens, parts = sequences_for(output, columns)
                inferred = infer(
                    self._shard,
                    self._pool.tensor(tokens),
                    self._pool.tensor(parts),
                    column_of(output),
                    micro_batch=self._micro_batch,
                    temperature=self._pool.setup.plan.job.hyperparameters.temperature,
                )
                if inferred is not None:
                    outputs[output] = {output: as_array(inferred)}
        return outputs, {}
