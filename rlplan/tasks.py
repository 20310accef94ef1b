"""Tasks that several algorithms have in common."""

from rlplan.dataflow import Task

GENERATE = Task(
    name="actor.generate",
    role="actor",
    kind="generate",
    stage="generation",
    inputs=("prompts",),
    outputs=("sequences", "log_probs"),
)

REFERENCE_LOG_PROB = Task(
    name="reference.compute_log_prob",
    role="reference",
    kind="infer",
    stage="preparation",
    inputs=("sequences",),
    outputs=("reference_log_probs",),
)

MODEL_REWARD = Task(
    name="reward.compute_reward",
    role="reward",
    kind="infer",
    stage="preparation",
    inputs=("sequences",),
    outputs=("scores",),
    head="scalar",
)

RULE_REWARD = Task(
    name="rule.compute_reward",
    role="rule",
    kind="rule",
    stage="preparation",
    inputs=("sequences",),
    outputs=("rule_scores",),
)
