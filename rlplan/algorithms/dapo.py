"""DAPO: GRPO without a reference; groups of equal rewards are sampled again (Yu et al. 2025)."""

from rlplan.dataflow import Algorithm
from rlplan.tasks import GENERATE, MODEL_REWARD, RULE_REWARD, actor_update

ALGORITHM = Algorithm(
    name="dapo",
    title="Decoupled clip and dynamic sampling policy optimisation",
    paper="Yu et al. 2025, DAPO, arXiv:2503.14476",
    required_roles=("actor",),
    optional_roles=("reward", "rule"),
    groups=True,
    advantage="group",
    kl_in="none",
    resamples=True,
    tasks=(GENERATE, MODEL_REWARD, RULE_REWARD, actor_update(loss="dapo_policy")),
)
