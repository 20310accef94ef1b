"""REINFORCE++: PPO's loss on returns that are whitened over the global batch, no critic (Hu 2025)."""

from rlplan.dataflow import (
    GENERATE,
    MODEL_REWARD,
    REFERENCE_LOG_PROB,
    RULE_REWARD,
    Algorithm,
    actor_update,
)

ALGORITHM = Algorithm(
    name="reinforce-plus-plus",
    title="REINFORCE++",
    paper="Hu 2025, REINFORCE++, arXiv:2501.03262",
    required_roles=("actor", "reference"),
    optional_roles=("reward", "rule"),
    advantage="whitened-returns",
    tasks=(
        GENERATE,
        REFERENCE_LOG_PROB,
        MODEL_REWARD,
        RULE_REWARD,
        actor_update("reference_log_probs"),
    ),
)
