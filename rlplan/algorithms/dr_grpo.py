"""Dr. GRPO: GRPO without what favours long responses and groups of little spread (Liu et al. 2025)."""

from rlplan.dataflow import GENERATE, MODEL_REWARD, RULE_REWARD, Algorithm, actor_update

ALGORITHM = Algorithm(
    name="dr-grpo",
    title="GRPO done right",
    paper="Liu et al. 2025, Understanding R1-Zero-like training, arXiv:2503.20783, section 3.2",
    required_roles=("actor",),
    optional_roles=("reward", "rule"),
    groups=True,
    advantage="group-mean",
    kl_in="none",
    loss_mean="token-sum-norm",
    tasks=(GENERATE, MODEL_REWARD, RULE_REWARD, actor_update()),
)
