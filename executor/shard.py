"""One rank's part of one model: its stages, flat weights and, where it is trained, its optimizer."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import lcm

import torch

from executor.flat import FlatParameters
from executor.models import EMBEDDING, HEAD, StageModel, build_stages
from executor.optimizers import ReplicatedOptimizer, ShardedOptimizer, ShardOptimizer
from executor.parallel import RankMesh, apply_tensor_parallelism
from rlplan.model import Head, ModelArchitecture
from rlplan.plan import TaskPlan
from rlplan.precision import Precision

# Distinct streams of one seed, so that critic and reward do not start as the actor. The reference
# starts as a copy of the actor: same stream.
ROLE_STREAMS = {"actor": 0, "reference": 0, "critic": 1, "reward": 2, "cost": 3, "cost_critic": 4}
NUM_STREAMS = 5
CRITICS = ("critic", "cost_critic")


@dataclass(slots=True, eq=False)
class ModelShard:
    """Hold one rank's part of one model.

    Attributes:
        stages: This rank's pipeline stages, first ones first; several where they interleave.
        trainer: Reduces gradients and steps; None where the model is not trained.
        precision: What matrices are multiplied in; weights and optimizer states are fp32.
    """

    stages: tuple[StageModel, ...]
    flat: FlatParameters
    mesh: RankMesh
    head: Head
    precision: Precision
    trainer: ShardOptimizer | None = None

    @property
    def device(self) -> torch.device:
        """Return where the shard lives."""
        return self.mesh.device

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """Return torch's optimizer of what this rank steps; None where the model is not trained."""
        return self.trainer.adam if self.trainer is not None else None

    @property
    def num_layers(self) -> int:
        """Return the layers that this rank holds."""
        return sum(len(stage.layers) for stage in self.stages)

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context of a pass: bf16 products with fp32 weights, or plain fp32."""
        if self.precision == "fp32":
            return nullcontext()
        context: AbstractContextManager[None] = torch.autocast(self.device.type, torch.bfloat16)
        return context


def build_shard(  # noqa: PLR0913 -- all that a shard depends on
    architecture: ModelArchitecture,
    head: Head,
    mesh: RankMesh,
    *,
    role: str,
    seed: int,
    precision: Precision,
    learning_rate: float | None = None,
    layout: TaskPlan | None = None,
    vocabulary_parts: int = 1,
) -> ModelShard:
    """Return a rank's shard of the model that `seed` gives, the same weights on any layout.

    The whole model is drawn on the host and then cut.

    Args:
        role: Chooses the stream of the seed, and how a scalar head starts.
        learning_rate: Of AdamW; None for a model that is not trained.
        layout: Says how stages interleave, what is recomputed and sharded; None: nothing of it.
        vocabulary_parts: A vocabulary that does not divide by it is held whole, as is one that does
            not divide by the tensor-parallel size.
    """
    stream = seed * NUM_STREAMS + ROLE_STREAMS[role]
    chunks = layout.chunks if layout is not None and mesh.pp_size > 1 else 1
    stages = build_stages(
        architecture,
        head,
        stream,
        random_head=role not in CRITICS,
        stages=chunks * mesh.pp_size,
        held=[chunk * mesh.pp_size + mesh.pp for chunk in range(chunks)],
        recompute=layout.recompute if layout is not None and learning_rate is not None else "none",
    )
    tied = head == "lm" and architecture.tied_embeddings
    split = head == "lm" and architecture.vocab_size % lcm(mesh.tp_size, vocabulary_parts) == 0
    for stage in stages:
        stage.to(mesh.device)
        if mesh.tp_size > 1:
            apply_tensor_parallelism(stage, mesh, split_vocabulary=split)
            if tied and stage.first and stage.last:
                stage.head.weight = stage.backbone.embed_tokens.weight  # type: ignore[union-attr, assignment]
    zero = layout.zero if layout is not None and learning_rate is not None else 0
    flat = _flat_parameters(stages, mesh, tied, trainable=learning_rate is not None, zero=zero)
    shard = ModelShard(stages, flat, mesh, head, precision)
    if learning_rate is not None:
        kind = ShardedOptimizer if zero else ReplicatedOptimizer
        shard.trainer = kind(flat, mesh, learning_rate)
    return shard


def _flat_parameters(
    stages: Sequence[StageModel], mesh: RankMesh, tied: bool, *, trainable: bool, zero: int
) -> FlatParameters:
    shared = ""
    if tied and mesh.pp_size > 1:
        mesh.tie_ends()
        shared = EMBEDDING if stages[0].first else HEAD if stages[-1].last else ""
    return FlatParameters(
        stages,
        mesh.device,
        trainable=trainable,
        shared=shared,
        owner=shared != HEAD,
        multiple=mesh.dp_size if zero else 1,
    )
