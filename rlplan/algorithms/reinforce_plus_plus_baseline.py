"""REINFORCE++ with a baseline: rewards less their group's mean, whitened over the batch (Hu 2025)."""

from rlplan.dataflow import Algorithm, actor_update, without_critic

ALGORITHM = Algorithm(
    name="reinforce-plus-plus-baseline",
    title="REINFORCE++ with a baseline",
    paper="Hu 2025, REINFORCE++, arXiv:2501.03262, section 3.2",
    required_roles=("actor", "reference"),
    groups=True,
    advantage="whitened-group",
    kl_in="loss",
    kl_estimator="k2",
    tasks=without_critic(actor_update("reference_log_probs")),
)
