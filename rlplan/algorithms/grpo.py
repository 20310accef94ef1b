"""GRPO: advantages relative to the other samples of a prompt, no critic (Shao et al. 2024)."""

from rlplan.dataflow import (
    GENERATE,
    MODEL_REWARD,
    REFERENCE_LOG_PROB,
    RULE_REWARD,
    Algorithm,
    actor_update,
)

ALGORITHM = Algorithm(
    name="grpo",
    title="Group relative policy optimisation",
    paper="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300",
    required_roles=("actor", "reference"),
    optional_roles=("reward", "rule"),
    groups=True,
    advantage="group",
    kl_in="loss",
    loss_mean="sequence",
    tasks=(
        GENERATE,
        REFERENCE_LOG_PROB,
        MODEL_REWARD,
        RULE_REWARD,
        actor_update("reference_log_probs"),
    ),
)
