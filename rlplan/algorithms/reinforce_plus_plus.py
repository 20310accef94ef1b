"""REINFORCE++: PPO's loss on returns that are whitened over the global batch, no critic (Hu 2025)."""

from rlplan.dataflow import Algorithm, actor_update, without_critic

ALGORITHM = Algorithm(
    name="reinforce-plus-plus",
    title="REINFORCE++",
    paper="Hu 2025, REINFORCE++, arXiv:2501.03262",
    required_roles=("actor", "reference"),
    advantage="whitened-returns",
    tasks=without_critic(actor_update("reference_log_probs")),
)
