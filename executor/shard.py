"""One rank's part of one model: its module, flat weights and, where it is trained, its optimizer."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from executor.flat import FlatParameters
from executor.models import HeadedModel, build_model, randomize_scalar_head
from executor.parallel import RankMesh, apply_tensor_parallelism
from rlplan.model import Head, ModelArchitecture
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
        optimizer: AdamW over the flat weights; None where the model is not trained.
        precision: What matrices are multiplied in; weights and optimizer states are fp32.
    """

    model: HeadedModel
    flat: FlatParameters
    mesh: RankMesh
    head: Head
    precision: Precision
    optimizer: torch.optim.Optimizer | None = None

    @property
    def device(self) -> torch.device:
        """Return where the shard lives."""
        return self.mesh.device

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context of a pass: bf16 products with fp32 weights, or plain fp32."""
        if self.precision == "fp32":
            return nullcontext()
        context: AbstractContextManager[None] = torch.autocast(self.device.type, torch.bfloat16)
        return context


def build_shard(
    architecture: ModelArchitecture,
    head: Head,
    mesh: RankMesh,
    *,
    role: str,
    seed: int,
    precision: Precision,
    learning_rate: float | None = None,
) -> ModelShard:
    """Return a rank's shard of the model that `seed` gives, the same weights on any layout.

    The whole model is drawn on the host and then cut. Weight decay is zero, as usual in RLHF.

    Args:
        role: Chooses the stream of the seed, and how a scalar head starts.
        learning_rate: Of AdamW; None for a model that is not trained.
    """
    stream = seed * NUM_STREAMS + ROLE_STREAMS[role]
    model = build_model(architecture, head, stream)
    if head == "scalar" and role not in CRITICS:
        randomize_scalar_head(model, stream)
    model.to(mesh.device)
    if mesh.tp_size > 1:
        split = head == "lm" and architecture.vocab_size % mesh.tp_size == 0
        apply_tensor_parallelism(model, mesh, split_vocabulary=split)
        if head == "lm" and architecture.tied_embeddings:
            model.head.weight = model.backbone.embed_tokens.weight  # type: ignore[union-attr, assignment]
    flat = FlatParameters(model, mesh.device, trainable=learning_rate is not None)
    shard = ModelShard(model, flat, mesh, head, precision)
    if learning_rate is not None:
        shard.optimizer = _optimizer(flat, learning_rate)
    return shard


def _optimizer(flat: FlatParameters, learning_rate: float) -> torch.optim.Optimizer:
    weights = nn.Parameter(flat.values)
    weights.grad = flat.gradients
    return torch.optim.AdamW([weights], lr=learning_rate, weight_decay=0.0, foreach=False)
