"""PPO with a critic and a KL penalty towards a reference model (Schulman et al. 2017; Ouyang et al. 2022)."""

from rlplan.dataflow import Algorithm, Task
from rlplan.tasks import GENERATE, MODEL_REWARD, REFERENCE_LOG_PROB, RULE_REWARD

ALGORITHM = Algorithm(
    name="ppo",
    title="Proximal policy optimisation",
    paper="Schulman et al. 2017, arXiv:1707.06347; Ouyang et al. 2022, arXiv:2203.02155",
    required_roles=("actor", "critic", "reference"),
    optional_roles=("reward", "rule"),
    advantage="gae",
    tasks=(
        GENERATE,
        Task(
            name="critic.compute_values",
            role="critic",
            kind="infer",
            stage="preparation",
            inputs=("sequences",),
            outputs=("values",),
            head="scalar",
        ),
        REFERENCE_LOG_PROB,
        MODEL_REWARD,
        RULE_REWARD,
        Task(
            name="actor.update",
            role="actor",
            kind="train",
            stage="training",
            inputs=(
                "sequences",
                "log_probs",
                "values",
                "reference_log_probs",
                "scores",
                "rule_scores",
            ),
            loss="ppo_policy",
        ),
        Task(
            name="critic.update",
            role="critic",
            kind="train",
            stage="training",
            inputs=(
                "sequences",
                "log_probs",
                "values",
                "reference_log_probs",
                "scores",
                "rule_scores",
            ),
            head="scalar",
            loss="value",
        ),
    ),
)
