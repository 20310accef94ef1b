"""REINFORCE++ with a baseline: rewards less their group's mean, whitened over the batch (Hu 2025)."""

from rlplan.dataflow import (
    GENERATE,
    MODEL_REWARD,
    REFERENCE_LOG_PROB,
    RULE_REWARD,
    Algorithm,
    actor_update,
)

ALGORITHM = Algorithm(
    name="reinforce-plus-plus-baseline",
    title="REINFORCE++ with a baseline",
    paper="Hu 2025, REINFORCE++, arXiv:2501.03262, section 3.2",
    required_roles=("actor", "reference"),
    optional_roles=("reward", "rule"),
    groups=True,
    advantage="whitened-group",
    kl_in="loss",
    kl_estimator="k2",
    tasks=(
        GENERATE,
        REFERENCE_LOG_PROB,
        MODEL_REWARD,
        RULE_REWARD,
        actor_update("reference_log_probs"),
    ),
)
