"""Which transitions bring the actor's weights from one layout of a pool to another."""

from rlplan.plan import TaskPlan, TransitionName


def transitions(train: TaskPlan, generate: TaskPlan) -> tuple[TransitionName, ...]:
    """Return the transitions that bring one layout of a pool to another."""
    if (train.tp, train.pp) == (generate.tp, generate.pp):
        return ("none", "hybridflow", "hybridflow-v", "all-gather")
    if train.tp % generate.tp == 0 and train.pp % generate.pp == 0:
        return ("hybridflow", "hybridflow-v", "all-gather")
    return ("all-gather",)


def transition_for(train: TaskPlan, generate: TaskPlan) -> TransitionName:
    """Return the transition that usually brings one layout of a pool to another."""
    return transitions(train, generate)[0]
