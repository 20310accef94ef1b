"""One forward pass of a model over whole sequences."""

from rlplan.stages import MODEL_SIZES, STAGE_SIZES, StageKind

KIND = StageKind(
    stage="preparation",
    engine="train",
    layout_fields=MODEL_SIZES
    | STAGE_SIZES
    | {"micro_batch", "token_budget", "zero", "shard_ranks", "offload"},
)
