"""PPO with a critic and a KL penalty towards a reference model (Schulman et al. 2017; Ouyang et al. 2022)."""

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

ALGORITHM = Algorithm(
    name="ppo",
    title="Proximal policy optimisation",
    paper="Schulman et al. 2017, arXiv:1707.06347; Ouyang et al. 2022, arXiv:2203.02155",
    required_roles=("actor", "critic", "reference"),
    advantage="gae",
    tasks=(
        GENERATE,
        COMPUTE_VALUES,
        REFERENCE_LOG_PROB,
        MODEL_REWARD,
        RULE_REWARD,
        actor_update("values", "reference_log_probs"),
        critic_update(
            "sequences", "log_probs", "values", "reference_log_probs", "scores", "rule_scores"
        ),
    ),
)
