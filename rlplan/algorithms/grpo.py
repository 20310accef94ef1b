"""GRPO: advantages relative to the other samples of a prompt, no critic (Shao et al. 2024)."""

from rlplan.dataflow import Algorithm, actor_update, without_critic

ALGORITHM = Algorithm(
    name="grpo",
    title="Group relative policy optimisation",
    paper="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300",
    required_roles=("actor", "reference"),
    groups=True,
    advantage="group",
    kl_in="loss",
    loss_mean="sequence",
    tasks=without_critic(actor_update("reference_log_probs")),
)
