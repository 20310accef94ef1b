"""The transition: it brings the actor's weights from where they train to where they generate."""

from rlplan.plan import TaskPlan, TransitionName
from rlplan.rules.rule import Problem, rule

# Tensor- and pipeline-parallel sizes.
Cut = tuple[int, int]
BETWEEN_POOLS: TransitionName = "two-copies"


def transitions_on_a_pool(train: Cut, generate: Cut) -> tuple[TransitionName, ...]:
    """Return the transitions that bring one cut of a pool to another, the usual one first."""
    if train == generate:
        return ("none", "hybridflow", "hybridflow-v", "all-gather")
    if train[0] % generate[0] == 0 and train[1] % generate[1] == 0:
        return ("hybridflow", "hybridflow-v", "all-gather")
    return ("all-gather",)


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
    if (train_pool == generate_pool) == (transition != BETWEEN_POOLS):
        return None
    words = "two copies are for an actor that generates on another pool than it trains on"
    on_a_pool = "hybridflow, hybridflow-v, all-gather, none"
    allowed = on_a_pool if train_pool == generate_pool else BETWEEN_POOLS
    return Problem("transition", words, transition, allowed)


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
    if train_pool != generate_pool or transition in (*fits, BETWEEN_POOLS):
        return None
    (tp, pp), (tp_gen, pp_gen) = train_cut, generate_cut
    words = f"cannot bring tp {tp}, pp {pp} to tp {tp_gen}, pp {pp_gen} of generation"
    return Problem("transition", words, transition, fits[0])


RULES = (two_copies_are_on_two_pools, transition_reaches_the_layout)
