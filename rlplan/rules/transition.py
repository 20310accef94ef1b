"""The transition: it brings the actor's weights from where they train to where they generate."""

from rlplan.plan import TaskPlan
from rlplan.rules.rule import Problem, rule
from rlplan.transfers import TRANSFERS, Cut, TransitionName, transfer_names, transitions_on_a_pool


def transitions(train: TaskPlan, generate: TaskPlan) -> tuple[TransitionName, ...]:
    """Return the transitions that bring one layout of a pool to another, the usual one first."""
    return transitions_on_a_pool((train.tp, train.pp), (generate.tp, generate.pp))


def transition_for(train: TaskPlan, generate: TaskPlan) -> TransitionName:
    """Return the transition that usually brings one layout of a pool to another."""
    return transitions(train, generate)[0]


@rule("plan")
def two_copies_are_on_two_pools(
    transition: TransitionName, train_pool: str, generate_pool: str
) -> Problem | None:
    """Copy weights to GPUs that do not have them, and gather them where they are."""
    apart = train_pool != generate_pool
    if TRANSFERS.load(transition).between_pools == apart:
        return None
    words = "two copies are for an actor that generates on another pool than it trains on"
    allowed = (name for name in transfer_names() if TRANSFERS.load(name).between_pools == apart)
    return Problem("transition", words, transition, ", ".join(allowed))


@rule("plan")
def transition_reaches_the_layout(
    transition: TransitionName,
    train_cut: Cut,
    generate_cut: Cut,
    train_pool: str,
    generate_pool: str,
) -> Problem | None:
    """Form generation's groups inside those of training, or gather the whole model."""
    fits = transitions_on_a_pool(train_cut, generate_cut)
    if (
        train_pool != generate_pool
        or transition in fits
        or TRANSFERS.load(transition).between_pools
    ):
        return None
    (tp, pp), (tp_gen, pp_gen) = train_cut, generate_cut
    words = f"cannot bring tp {tp}, pp {pp} to tp {tp_gen}, pp {pp_gen} of generation"
    return Problem("transition", words, transition, fits[0])


RULES = (two_copies_are_on_two_pools, transition_reaches_the_layout)
