"""GSPO: one probability ratio a response, clipped as a whole (Zheng et al. 2025)."""

from rlplan.dataflow import GENERATE, MODEL_REWARD, RULE_REWARD, Algorithm, actor_update

ALGORITHM = Algorithm(
    name="gspo",
    title="Group sequence policy optimisation",
    paper="Zheng et al. 2025, GSPO, arXiv:2507.18071",
    required_roles=("actor",),
    optional_roles=("reward", "rule"),
    groups=True,
    advantage="group",
    kl_in="none",
    loss_mean="sequence",
    # Section 5.1: ratios of responses are means of their tokens', and stay much closer to 1.
    clip_ratio=3e-4,
    clip_ratio_high=4e-4,
    tasks=(GENERATE, MODEL_REWARD, RULE_REWARD, actor_update(loss="gspo_policy")),
)
