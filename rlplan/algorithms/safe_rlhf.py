"""Safe-RLHF: PPO that keeps a cost under a limit by a Lagrange multiplier (Dai et al. 2023).

The cost comes from a cost model, or from the job's cost function. A critic of the cost is a model of
its own, `cost_critic`; without one the critic values reward and cost together, at the multiplier of
the iteration.
"""

from dataclasses import replace

from rlplan.dataflow import (
    COMPUTE_VALUES,
    GENERATE,
    MODEL_REWARD,
    REFERENCE_LOG_PROB,
    RULE_REWARD,
    Algorithm,
    actor_update,
    critic_update,
)

_EXPERIENCE = (
    "sequences",
    "log_probs",
    "values",
    "cost_values",
    "reference_log_probs",
    "costs",
    "rule_costs",
    "scores",
    "rule_scores",
)

ALGORITHM = Algorithm(
    name="safe-rlhf",
    title="Safe RLHF (PPO-Lagrangian)",
    paper="Dai et al. 2023, Safe RLHF, arXiv:2310.12773",
    required_roles=("actor", "critic", "reference"),
    optional_roles=("reward", "cost", "cost_critic", "rule"),
    advantage="constrained-gae",
    constrained=True,
    pretrains=True,
    tasks=(
        GENERATE,
        COMPUTE_VALUES,
        replace(
            COMPUTE_VALUES,
            name="cost_critic.compute_values",
            role="cost_critic",
            outputs=("cost_values",),
        ),
        REFERENCE_LOG_PROB,
        MODEL_REWARD,
        replace(MODEL_REWARD, name="cost.compute_cost", role="cost", outputs=("costs",)),
        replace(RULE_REWARD, outputs=("rule_scores", "rule_costs")),
        replace(actor_update(loss="ppo_ptx_policy"), inputs=(*_EXPERIENCE, "pretrain")),
        critic_update(*_EXPERIENCE),
        critic_update(*_EXPERIENCE, role="cost_critic", loss="cost_value"),
    ),
)
