"""DAPO: GRPO without a reference; groups of equal rewards are sampled again (Yu et al. 2025)."""

from rlplan.dataflow import Algorithm, actor_update, without_critic

ALGORITHM = Algorithm(
    name="dapo",
    title="Decoupled clip and dynamic sampling policy optimisation",
    paper="Yu et al. 2025, DAPO, arXiv:2503.14476",
    required_roles=("actor",),
    groups=True,
    advantage="group",
    kl_in="none",
    clip_ratio_high=0.28,  # section 4.1
    resamples=True,
    tasks=without_critic(actor_update()),
)
