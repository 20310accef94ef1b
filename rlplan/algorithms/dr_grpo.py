"""Dr. GRPO: GRPO without what favours long responses and groups of little spread (Liu et al. 2025)."""

from rlplan.dataflow import Algorithm, actor_update, without_critic

ALGORITHM = Algorithm(
    name="dr-grpo",
    title="GRPO done right",
    paper="Liu et al. 2025, Understanding R1-Zero-like training, arXiv:2503.20783, section 3.2",
    required_roles=("actor",),
    groups=True,
    advantage="group-mean",
    kl_in="none",
    loss_mean="token-sum-norm",
    tasks=without_critic(actor_update()),
)
