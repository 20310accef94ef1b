"""RLOO: the baseline of a sample is the mean reward of its prompt's other samples (Ahmadian et al. 2024)."""

from rlplan.dataflow import Algorithm, actor_update, without_critic

ALGORITHM = Algorithm(
    name="rloo",
    title="REINFORCE leave-one-out",
    paper="Ahmadian et al. 2024, Back to Basics, arXiv:2402.14740",
    required_roles=("actor", "reference"),
    groups=True,
    advantage="leave-one-out",
    tasks=without_critic(actor_update("reference_log_probs")),
)
