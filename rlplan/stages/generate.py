"""Sequences sampled from a model, token by token."""

from rlplan.stages import MODEL_SIZES, StageKind

KIND = StageKind(
    stage="generation",
    engine="generate",
    layout_fields=MODEL_SIZES | {"max_running", "memory_fraction"},
)
