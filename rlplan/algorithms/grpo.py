"""GRPO: advantages relative to the other samples of a prompt, no critic (Shao et al. 2024)."""

from rlplan.dataflow import Algorithm, Task
from rlplan.tasks import GENERATE, MODEL_REWARD, REFERENCE_LOG_PROB, RULE_REWARD

ALGORITHM = Algorithm(
    name="grpo",
    title="Group relative policy optimisation",
    paper="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300",
    required_roles=("actor", "reference"),
    optional_roles=("reward", "rule"),
    groups=True,
    advantage="group",
    tasks=(
        GENERATE,
        REFERENCE_LOG_PROB,
        MODEL_REWARD,
        RULE_REWARD,
        Task(
            name="actor.update",
            role="actor",
            kind="train",
            stage="training",
            inputs=("sequences", "log_probs", "reference_log_probs", "scores", "rule_scores"),
            loss="grpo_policy",
        ),
    ),
)
