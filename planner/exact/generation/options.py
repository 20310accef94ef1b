"""Ways to generate on a pool: layouts with their memory, and transitions that bring weights to them."""

from dataclasses import dataclass, field

from rlplan.plan import TaskPlan
from rlplan.planner.layouts.pool_rows import PoolRows
from rlplan.planner.placements.allocations import Share
from rlplan.simulator.costs.syncs.transition import transition_cost
from rlplan.simulator.memory.transition_memory import extra_weight_bytes, transition_terms
from rlplan.simulator.placed.columns import Floats, Ints
from rlplan.simulator.placed.plan import PlacedTransition
from rlplan.simulator.placed.site import Site
from rlplan.transfers import TransitionName


@dataclass(frozen=True, slots=True)
class WeightMove:
    """Hold what it takes to bring weights from where they train to a generation layout.

    Attributes:
        extra_bytes: Weights that generation adds to the pool's residents.
        peak_bytes: What the transition takes of each GPU beside the pool's residents.
    """

    transition: TransitionName
    seconds: float
    extra_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Replicas:
    """Hold one generation layout on one site with its memory.

    Attributes:
        working_bytes: What the engine holds beside weights and cache.
        weight_bytes: A whole copy of a GPU's weights.
        least_bytes: With less cache, not one sequence runs.
        useful_bytes: More cache is of no use.
        block_bytes: One block of the cache on one GPU.
        state_blocks: Blocks that a sequence takes beside those of its tokens.
        bounds: Seconds that are known not to be beaten, by the cache's blocks.
    """

    layout: TaskPlan
    site: Site
    working_bytes: int
    weight_bytes: int
    least_bytes: float
    useful_bytes: float
    block_bytes: float
    state_blocks: int
    bounds: dict[float, float] = field(default_factory=dict, compare=False, repr=False)


# A share of the cluster, its site, and what a set can do there.
ShareRows = tuple[Share, Site, PoolRows]


@dataclass(frozen=True, slots=True, eq=False)
class GenerationOption:
    """Hold one layout of generation with the transition to it, on one share."""

    share: Share
    site: Site
    rows: PoolRows
    replicas: Replicas
    move: WeightMove


# A way with the rows that leave room for it, their caches, and bounds on transition and generation.
OptionRows = tuple[GenerationOption, Ints, Floats, Floats]


@dataclass(frozen=True, slots=True, eq=False)
class UnpricedMove:
    """Hold a transition that is not priced yet, with the memory that it takes (as `WeightMove` has it)."""

    transition: PlacedTransition
    extra_bytes: int
    peak_bytes: int

    @classmethod
    def of(cls, transition: PlacedTransition) -> "UnpricedMove":
        """Return a transition with what it holds."""
        peak = sum(transition_terms(transition).values())
        return cls(transition, extra_weight_bytes(transition), peak)

    def priced(self) -> WeightMove:
        """Return it with its seconds."""
        seconds = transition_cost(self.transition).total.seconds
        return WeightMove(self.transition.name, seconds, self.extra_bytes, self.peak_bytes)


def cut_of(layout: TaskPlan) -> tuple[int | None, ...]:
    """Return what layouts of generation have alike that differ in settings only."""
    return layout.tp, layout.pp, layout.dp, layout.cp, layout.ep, layout.expert_tp
