"""Where the ranks of a plan's pools stand during generation, and with whom they gather weights."""

from executor.workers.protocols import RankPositions, generate_positions, train_positions
from rlplan.layout import GenerateLayout, TrainLayout
from rlplan.plan import Plan, TaskPlan

# Engines of training, by the names of their sheets.
TRAIN_ENGINES = ("torch-tp-dp", "torch-3d", "torch-3d-sp")
SEQUENCE_PARALLEL_ENGINES = ("torch-3d-sp",)


def task_positions(layout: TaskPlan, ranks: int) -> RankPositions:
    """Return where the ranks of a pool stand while they train or infer."""
    return train_positions(layout.tp, ranks, layout.pp, layout.cp)


def generation_positions(plan: Plan) -> RankPositions:
    """Return where the ranks of the generate pool stand during generation.

    On the train pool with `hybridflow` these are zero-redundancy groups (Sheng et al. 2025,
    HybridFlow, section 5.3); elsewhere consecutive ranks.
    """
    train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
    ranks = plan.pool_of("actor.generate").gpus
    if train.pool == generate.pool and uses_micro_groups(plan):
        return generate_positions(_micro_groups(train, generate, ranks))
    return train_positions(generate.tp, ranks, generate.pp)


def shares_weights(plan: Plan) -> bool:
    """Tell whether generation runs on the training weights themselves."""
    train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
    same = (train.pool, train.tp, train.pp) == (generate.pool, generate.tp, generate.pp)
    # Single tokens cannot be cut along the tokens, and those modules generate nothing; replicas that
    # generate take as many steps as they like, so that none waits for another one's experts.
    whole = not is_fully_sharded(train) and train.ep == 1
    return same and whole and not (cuts_sequences(train) and train.tp > 1)


def cuts_sequences(layout: TaskPlan) -> bool:
    """Tell whether hidden states are cut along the tokens between attention and MLP."""
    return layout.engine in SEQUENCE_PARALLEL_ENGINES


def is_fully_sharded(layout: TaskPlan) -> bool:
    """Tell whether a train task's weights are sharded over its copies of the model as well."""
    return layout.zero > 1 and layout.dp * layout.cp > 1


def uses_micro_groups(plan: Plan) -> bool:
    """Tell whether generation groups are zero-redundancy groups of the training layout."""
    train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
    divides = train.tp % generate.tp == 0 and train.pp % generate.pp == 0
    # Stages that interleave lie apart: they are slices of nothing but the whole pipeline.
    nests = train.chunks == 1 or generate.pp == 1
    # Without a transition of its own, equal layouts still bring sharded weights together.
    return plan.transition in ("hybridflow", "none") and divides and nests


def _micro_groups(train: TaskPlan, generate: TaskPlan, ranks: int) -> GenerateLayout:
    block = TrainLayout(pp=train.pp, tp=train.tp, dp=ranks // (train.pp * train.tp))
    return GenerateLayout(train=block, pp=generate.pp, tp=generate.tp)


def gather_groups(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Return the groups of the train pool's ranks inside which weights are gathered."""
    train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
    ranks = plan.pool_of("actor.update").gpus
    if uses_micro_groups(plan):
        return _micro_groups(train, generate, ranks).micro_dp_groups()
    return train_positions(train.tp, ranks, train.pp).groups()
