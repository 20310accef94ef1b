"""Updates of a model: forward and backward passes over micro-batches, and optimizer steps."""

from rlplan.stages import MODEL_SIZES, STAGE_SIZES, StageKind

KIND = StageKind(
    stage="training",
    engine="train",
    has_gradients=True,
    layout_fields=MODEL_SIZES
    | STAGE_SIZES
    | {"micro_batch", "token_budget", "chunks", "recompute", "zero", "shard_ranks", "offload"},
)
