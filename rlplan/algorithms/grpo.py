"""GRPO: advantages relative to the other samples of a prompt, no critic (Shao et al. 2024)."""

from rlplan.dataflow import Algorithm, Task

ALGORITHM = Algorithm(
    name="grpo",
    title="Group relative policy optimisation",
    paper="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300",
    required_roles=("actor", "reference"),
    optional_roles=("reward", "rule"),
    groups=True,
    advantage="group",
    tasks=(
        Task(
            name="actor.generate",
            role="actor",
            kind="generate",
            stage="generation",
            inputs=("prompts",),
            outputs=("sequences", "log_probs"),
        ),
        Task(
            name="reference.compute_log_prob",
            role="reference",
            kind="infer",
            stage="preparation",
            inputs=("sequences",),
            outputs=("reference_log_probs",),
        ),
        Task(
            name="reward.compute_reward",
            role="reward",
            kind="infer",
            stage="preparation",
            inputs=("sequences",),
            outputs=("scores",),
            head="scalar",
        ),
        Task(
            name="rule.compute_reward",
            role="rule",
            kind="rule",
            stage="preparation",
            inputs=("sequences",),
            outputs=("rule_scores",),
        ),
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
