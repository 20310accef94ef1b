"""CISPO: the weight of a token is clipped, never its gradient (MiniMax 2025)."""

from rlplan.dataflow import GENERATE, MODEL_REWARD, RULE_REWARD, Algorithm, actor_update

ALGORITHM = Algorithm(
    name="cispo",
    title="Clipped importance sampling policy optimisation",
    paper="MiniMax 2025, MiniMax-M1, arXiv:2506.13585, section 3.1",
    required_roles=("actor",),
    optional_roles=("reward", "rule"),
    groups=True,
    advantage="group",
    kl_in="none",
    # The paper has no lower bound, and gives no number for the upper one.
    clip_ratio=1.0,
    tasks=(GENERATE, MODEL_REWARD, RULE_REWARD, actor_update(loss="cispo_policy")),
)
