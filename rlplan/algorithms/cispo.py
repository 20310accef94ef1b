"""CISPO: the weight of a token is clipped, never its gradient (MiniMax 2025)."""

from rlplan.dataflow import Algorithm, actor_update, without_critic

ALGORITHM = Algorithm(
    name="cispo",
    title="Clipped importance sampling policy optimisation",
    paper="MiniMax 2025, MiniMax-M1, arXiv:2506.13585, section 3.1",
    required_roles=("actor",),
    groups=True,
    advantage="group",
    kl_in="none",
    # The paper has no lower bound, and gives no number for the upper one.
    clip_ratio=1.0,
    tasks=without_critic(actor_update(loss="cispo_policy")),
)
