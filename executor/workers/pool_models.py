"""The models of a pool on one of its ranks, each in its layout."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlplan.dataflow import Task
from rlplan.executor.model.families import weights_folder
from rlplan.executor.parallel.meshes import RankMesh, make_mesh
from rlplan.executor.parallel.positions import (
    RankPositions,
    generation_positions,
    shares_weights,
    task_positions,
)
from rlplan.executor.weights.shard import ModelShard, build_shard
from rlplan.executor.weights.transition import PoolTransition
from rlplan.executor.workers.calls import PoolSetup


class PoolModels:
    """Build and hold a rank's shards of all models of its pool.

    Every rank of the pool builds its own at the same time, since groups of ranks are made together.

    Attributes:
        shards: By role, the shard in the layout in which the model is trained or infers.
        transition: What brings the weights to the generate layout inside this pool, if they differ.
    """

    def __init__(self, setup: PoolSetup, rank: int, ranks: int, device: torch.device) -> None:
        self.setup, self.device = setup, device
        self.shards: dict[str, ModelShard] = {}
        self.transition: PoolTransition | None = None
        self._rank, self._ranks = rank, ranks
        self._meshes: dict[tuple[RankPositions, int], RankMesh] = {}
        self._generator: ModelShard | None = None

    @property
    def generator(self) -> ModelShard:
        """Return the shard that generates."""
        assert self._generator is not None, "this pool generates nothing"
        return self._generator

    @property
    def generates_behind(self) -> bool:
        """Tell whether this pool generates with weights older than those that are trained."""
        return self._generator is not None and self.setup.plan.flow.is_batch_ahead

    def tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Return a copy on the device; arrays of the object store cannot be written."""
        return torch.tensor(array, device=self.device)

    def shard_of(self, task: Task) -> ModelShard:
        """Return the shard of a task's role, adapters off where it wants that; built in the task's layout if need be."""
        if task.role not in self.shards:
            positions = task_positions(self.setup.plan.tasks[task.name], self._ranks)
            self.shards[task.role] = self._build(task, positions)
        shard = self.shards[task.role]
        return shard.without_adapters() if task.without_adapter else shard

    def build_generator(self, task: Task) -> None:
        """Build the shard that generates, and what brings the weights to it; or share a shard."""
        plan, shard = self.setup.plan, self.shards.get(task.role)
        if shard is not None and shares_weights(plan):
            self._generator = shard
            return
        # Within a pool its weights come from those that are trained.
        positions, filled = generation_positions(plan), shard is None
        self._generator = self._build(task, positions, filled=filled)
        if shard is not None:
            self.transition = PoolTransition(plan, shard, self._generator)
            self.transition.release()

    def _build(self, task: Task, positions: RankPositions, *, filled: bool = True) -> ModelShard:
        job, layout = self.setup.plan.job, self.setup.plan.tasks[task.name]
        rate, settings = None, job.hyperparameters
        if task.trains:
            rate = settings.learning_rate if task.head == "lm" else settings.critic_learning_rate
        shard = build_shard(
            job.architecture(task.role),
            task.head,
            self._mesh(positions, layout.ep),
            role=task.role,
            seed=self.setup.seed,
            precision=job.precision or "fp32",
            adapter=job.adapter(task.role) if task.trains else None,
            folder=weights_folder(job, task.role),
            filled=filled,
            learning_rate=rate,
            layout=layout,
        )
        if shard.trainer is not None:
            shard.trainer.configure(settings, job.workload.updates * job.workload.epochs)
        if layout.offload and not task.generates:
            shard.offload()
        return shard

    def _mesh(self, positions: RankPositions, ep: int) -> RankMesh:
        if (positions, ep) not in self._meshes:
            made = make_mesh(positions, self._rank, self.device, ep)
            self._meshes[positions, ep] = made
        return self._meshes[positions, ep]


def as_array(values: Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor's values on the host, as calls pass them on."""
    return values.detach().cpu().numpy()
