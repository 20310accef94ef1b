"""The models of a pool on one of its ranks, each in its layout."""

from dataclasses import dataclass

import torch

from executor.parallel.meshes import RankMesh, make_mesh
from executor.parallel.positions import (
    RankPositions,
    generation_positions,
    shares_weights,
    task_positions,
)
from executor.weights.shard import ModelShard, build_shard
from executor.weights.transition import PoolTransition
from rlplan.dataflow import Task
from rlplan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSetup:
    """Say what a pool's workers will run.

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
        shards: By role, the shard in the layout in which the model is trained or infers.
        transition: What brings the weights to the generate layout inside this pool, if they differ.
    """

    def __init__(self, setup: PoolSetup, rank: int, ranks: int, device: torch.device) -> None:
        self.shards: dict[str, ModelShard] = {}
        self.transition: PoolTransition | None = None
        self._setup, self._rank, self._device = setup, rank, device
        self._meshes: dict[tuple[RankPositions, int], RankMesh] = {}
        self._generator: ModelShard | None = None
        for task in setup.tasks:
            if task.kind == "train" or (task.kind == "infer" and not self._is_trained(task)):
                layout = setup.plan.tasks[task.name]
                positions = task_positions(layout, ranks)
                self.shards[task.role] = self._build(task, positions)
        for task in setup.tasks:
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
        return self._generator is not None and self._setup.plan.mode == "one-step-off"

    def _prepare_generation(self, task: Task) -> None:
        plan, shard = self._setup.plan, self.shards.get(task.role)
        if shard is not None and shares_weights(plan):
            self._generator = shard
            return
        # A slice of the generate shard holds the train shard, so both are cut alike.
        parts = plan.tasks[f"{task.role}.update"].tp if shard is not None else 1
        self._generator = self._build(task, generation_positions(plan), vocabulary_parts=parts)
        if shard is not None:
            self.transition = PoolTransition(plan, shard, self._generator)
            self.transition.release()

    def _is_trained(self, task: Task) -> bool:
        return f"{task.role}.update" in self._setup.plan.tasks

    def _build(
        self, task: Task, positions: RankPositions, *, vocabulary_parts: int = 1
    ) -> ModelShard:
        job = self._setup.plan.job
        layout = self._setup.plan.tasks[task.name]
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
            seed=self._setup.seed,
            precision=job.precision or "fp32",
            learning_rate=rate,
            layout=layout,
            vocabulary_parts=vocabulary_parts,
        )
        if layout.offload and task.kind != "generate":
            shard.offload()
        return shard

    def _mesh(self, positions: RankPositions, ep: int) -> RankMesh:
        if (positions, ep) not in self._meshes:
            made = make_mesh(positions, self._rank, self._device, ep)
            self._meshes[positions, ep] = made
        return self._meshes[positions, ep]
