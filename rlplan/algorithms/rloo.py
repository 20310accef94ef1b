"""RLOO: the baseline of a sample is the mean reward of its prompt's other samples (Ahmadian et al. 2024)."""

from rlplan.dataflow import (
    GENERATE,
    MODEL_REWARD,
    REFERENCE_LOG_PROB,
    RULE_REWARD,
    Algorithm,
    actor_update,
)

ALGORITHM = Algorithm(
    name="rloo",
    title="REINFORCE leave-one-out",
    paper="Ahmadian et al. 2024, Back to Basics, arXiv:2402.14740",
    required_roles=("actor", "reference"),
    optional_roles=("reward", "rule"),
    groups=True,
    advantage="leave-one-out",
    tasks=(
        GENERATE,
        REFERENCE_LOG_PROB,
        MODEL_REWARD,
        RULE_REWARD,
        actor_update("reference_log_probs"),
    ),
)
