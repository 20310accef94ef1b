"""GSPO: one probability ratio a response, clipped as a whole (Zheng et al. 2025)."""

from rlplan.dataflow import Algorithm, actor_update, without_critic

ALGORITHM = Algorithm(
    name="gspo",
    title="Group sequence policy optimisation",
    paper="Zheng et al. 2025, GSPO, arXiv:2507.18071",
    required_roles=("actor",),
    groups=True,
    advantage="group",
    kl_in="none",
    loss_mean="sequence",
    # Section 5.1: ratios of responses are means of their tokens', and stay much closer to 1.
    clip_ratio=3e-4,
    clip_ratio_high=4e-4,
    tasks=without_critic(actor_update(loss="gspo_policy")),
)
