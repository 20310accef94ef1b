"""The models of a pool on one of its ranks: who lives there, in which layout."""

from dataclasses import dataclass

import torch

from executor.parallel.generation_layouts import (
    generation_positions,
    shares_weights,
    task_positions,
)
from executor.parallel.meshes import RankMesh, make_mesh
from executor.weights.shard import ModelShard, build_shard
from executor.weights.transition import PoolTransition
from executor.workers.protocols import RankPositions
from rlplan.dataflow import Task
from rlplan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """Tell a pool's workers what they will run.

    Attributes:
        tasks: The pool's tasks, in the dataflow's order.
        seed: Of weights and samples.
        eos_id: Token that ends a response.
    """

    plan: Plan
    pool: str
    tasks: tuple[Task, ...]
    seed: int
    eos_id: int


class PoolModels:
    """Build and hold a rank's shards of all models of its pool.

    Every rank of the pool builds its own at the same time, since groups of ranks are made together.

    Attributes:
        homes: By role, the shard in the layout in which the model is trained or infers.
        transition: What brings the weights to the generate layout inside this pool, if they differ.
    """

    def __init__(self, duty: Duty, rank: int, ranks: int, device: torch.device) -> None:
        self.homes: dict[str, ModelShard] = {}
        self.transition: PoolTransition | None = None
        self._duty, self._rank, self._device = duty, rank, device
        self._meshes: dict[tuple[RankPositions, int], RankMesh] = {}
        self._generator: ModelShard | None = None
        for task in duty.tasks:
            if task.kind == "train" or (task.kind == "infer" and not self._is_trained(task)):
                layout = duty.plan.tasks[task.name]
                positions = task_positions(layout, ranks)
                self.homes[task.role] = self._build(task, positions)
        for task in duty.tasks:
            if task.kind == "generate":
                self._prepare_generation(task)

    @property
    def generator(self) -> ModelShard:
        """Return the shard that generates."""
        assert self._generator is not None, "this pool generates nothing"
        return self._generator

    @property
    def generates_behind(self) -> bool:
        """Tell whether this pool generates with weights older than those that are trained."""
        return self._generator is not None and self._duty.plan.mode == "one-step-off"

    def _prepare_generation(self, task: Task) -> None:
        plan, home = self._duty.plan, self.homes.get(task.role)
        if home is not None and shares_weights(plan):
            self._generator = home
            return
        # A slice of the generate shard holds the train shard, so both are cut alike.
        parts = plan.tasks[f"{task.role}.update"].tp if home is not None else 1
        self._generator = self._build(task, generation_positions(plan), vocabulary_parts=parts)
        if home is not None:
            self.transition = PoolTransition(plan, home, self._generator)
            self.transition.release()

    def _is_trained(self, task: Task) -> bool:
        return f"{task.role}.update" in self._duty.plan.tasks

    def _build(
        self, task: Task, positions: RankPositions, *, vocabulary_parts: int = 1
    ) -> ModelShard:
        job = self._duty.plan.job
        layout = self._duty.plan.tasks[task.name]
        mesh = self._mesh(positions, layout.ep)
        rate = None
        if task.kind == "train":
            settings = job.hyperparameters
            rate = settings.learning_rate if task.head == "lm" else settings.critic_learning_rate
        shard = build_shard(
            job.architecture(task.role),
            task.head,
            mesh,
            role=task.role,
            seed=self._duty.seed,
            precision=job.precision or "fp32",
            learning_rate=rate,
            layout=layout,
            vocabulary_parts=vocabulary_parts,
        )
        if layout.offload and task.kind != "generate":
            shard.park()
        return shard

    def _mesh(self, positions: RankPositions, ep: int) -> RankMesh:
        if (positions, ep) not in self._meshes:
            made = make_mesh(positions, self._rank, self._device, ep)
            self._meshes[positions, ep] = made
        return self._meshes[positions, ep]
