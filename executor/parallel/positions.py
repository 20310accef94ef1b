"""Places of ranks in the dimensions of a layout: plain numbers, without torch."""

from dataclasses import dataclass

from rlplan.layout import GenerateLayout, TrainLayout
from rlplan.plan import Plan, TaskPlan
from rlplan.transfers import TRANSFERS

# Engines of training, by the names of their sheets.
TRAIN_ENGINES = ("torch-tp-dp", "torch-3d", "torch-3d-sp")
SEQUENCE_PARALLEL_ENGINES = ("torch-3d-sp",)


@dataclass(frozen=True, slots=True)
class RankPositions:
    """Say where each rank of a worker group stands in the layout of one task.

    Attributes:
        dp: By rank, the data-parallel position (for generation: the replica).
        pp: By rank, the pipeline position inside it.
        tp: By rank, the tensor-parallel position inside that.
        cp: By rank, the context-parallel position, outside the pipeline; empty where there is none.
    """

    dp: tuple[int, ...]
    pp: tuple[int, ...]
    tp: tuple[int, ...]
    cp: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return len(self.dp)

    @property
    def dp_size(self) -> int:
        """Return the number of data-parallel groups."""
        return max(self.dp) + 1

    @property
    def pp_size(self) -> int:
        """Return the number of pipeline stages in each of them."""
        return max(self.pp) + 1

    @property
    def tp_size(self) -> int:
        """Return the number of ranks of each stage."""
        return max(self.tp) + 1

    @property
    def cp_size(self) -> int:
        """Return the number of ranks that share the tokens of each sequence."""
        return max(self.cp, default=0) + 1

    @property
    def copies_size(self) -> int:
        """Return the number of copies of the model: data- times context-parallel ranks."""
        return self.dp_size * self.cp_size

    @property
    def copies(self) -> tuple[int, ...]:
        """Return, by rank, which copy of the model it holds a part of."""
        return tuple(dp * self.cp_size + self.cp_of(rank) for rank, dp in enumerate(self.dp))

    def cp_of(self, rank: int) -> int:
        """Return a rank's context-parallel position."""
        return self.cp[rank] if self.cp else 0

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Return the ranks of every copy of the model, stage by stage, in tensor order."""
        places = zip(self.copies, self.pp, self.tp, strict=True)
        at = {place: rank for rank, place in enumerate(places)}
        inside = [(pp, tp) for pp in range(self.pp_size) for tp in range(self.tp_size)]
        return tuple(
            tuple(at[copy, *place] for place in inside) for copy in range(self.copies_size)
        )

    def first_groups(self) -> tuple[tuple[int, ...], ...]:
        """Return the ranks of the first copy of the model of every data-parallel position."""
        return self.groups()[:: self.cp_size]

    def leaders(self) -> tuple[int, ...]:
        """Return the rank whose results count, by data-parallel position: last stage, first tensor rank."""
        return tuple(group[-self.tp_size] for group in self.first_groups())


def train_positions(tp: int, ranks: int, pp: int = 1, cp: int = 1) -> RankPositions:
    """Return positions of a training or inference layout: TP ranks are consecutive, then PP, then CP."""
    layout = TrainLayout(pp=pp, tp=tp, dp=ranks // (pp * tp))
    places = [layout.coordinate(rank) for rank in range(ranks)]
    return RankPositions(
        dp=tuple(place.dp // cp for place in places),
        pp=tuple(place.pp for place in places),
        tp=tuple(place.tp for place in places),
        cp=tuple(place.dp % cp for place in places) if cp > 1 else (),
    )


def generate_positions(layout: GenerateLayout) -> RankPositions:
    """Return positions of generation groups inside the blocks of a training layout."""
    ranks = range(layout.train.ranks)
    return RankPositions(
        dp=tuple(layout.replica(rank) for rank in ranks),
        pp=tuple(layout.shard(rank)[0] for rank in ranks),
        tp=tuple(layout.shard(rank)[1] for rank in ranks),
    )


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
    # Sequence parallelism cannot cut single tokens, so such modules cannot generate. Replicas take different numbers of
    # steps in generation, so they cannot exchange experts or weights with each other.
    whole = not train.meets_in_passes
    return same and whole and not (cuts_sequences(train) and train.tp > 1)


def cuts_sequences(layout: TaskPlan) -> bool:
    """Tell whether hidden states are cut along the tokens between attention and MLP."""
    return layout.engine in SEQUENCE_PARALLEL_ENGINES


def uses_micro_groups(plan: Plan) -> bool:
    """Tell whether generation groups are zero-redundancy groups of the training layout."""
    train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
    divides = train.tp % generate.tp == 0 and train.pp % generate.pp == 0
    # Stages that interleave lie apart: they are slices of nothing but the whole pipeline.
    nests = train.chunks == 1 or generate.pp == 1
    # Without a transition of its own, equal layouts still bring sharded weights together.
    return TRANSFERS.load(plan.transition).nests and divides and nests


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
