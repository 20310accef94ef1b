"""Tasks that several algorithms have in common."""

from rlplan.dataflow import Task

GENERATE = Task(
    name="actor.generate",
    role="actor",
    kind="generate",
    inputs=("prompts",),
    outputs=("sequences", "log_probs"),
)

REFERENCE_LOG_PROB = Task(
    name="reference.compute_log_prob",
    role="reference",
    kind="infer",
    inputs=("sequences",),
    outputs=("reference_log_probs",),
)

COMPUTE_VALUES = Task(
    name="critic.compute_values",
    role="critic",
    kind="infer",
    inputs=("sequences",),
    outputs=("values",),
    head="scalar",
)

MODEL_REWARD = Task(
    name="reward.compute_reward",
    role="reward",
    kind="infer",
    inputs=("sequences",),
    outputs=("scores",),
    head="scalar",
)

RULE_REWARD = Task(
    name="rule.compute_reward",
    role="rule",
    kind="rule",
    inputs=("sequences",),
    outputs=("rule_scores",),
)


def actor_update(*inputs: str, loss: str = "ppo_policy") -> Task:
    """Return the actor's update from its sequences, rewards and these inputs between them."""
    return Task(
        name="actor.update",
        role="actor",
        kind="train",
        inputs=("sequences", "log_probs", *inputs, "scores", "rule_scores"),
        loss=loss,
    )
