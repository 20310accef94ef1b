"""What a role can do on a pool, and counts of what a search looked at."""

from dataclasses import dataclass, field
from typing import NamedTuple

from rlplan.plan import TaskPlan
from rlplan.simulator.memory.states import GRADIENTS_SHARDED
from rlplan.simulator.placed.columns import LayoutColumns, Zero


class WeightSharding(NamedTuple):
    """Say how the weights of a role that generates are sharded where it trains.

    It decides what bringing them to generation costs and keeps, so that only options of one sharding
    compare.

    Attributes:
        away: Whether they are in host memory while the model generates.
    """

    tp: int
    pp: int
    cp: int
    ep: int
    expert_tp: int
    sharded: Zero
    away: bool = False


Chosen = tuple[tuple[str, TaskPlan], ...]


@dataclass(frozen=True, slots=True)
class RoleOption:
    """Hold the layouts of all tasks of one role with what they cost.

    Attributes:
        chosen: For each task its name, and its layout as a row of columns.
        preparation_seconds: Sum over its inference tasks.
        training_seconds: Sum over its training tasks.
        resident_bytes: What stays on each GPU while other roles of the pool run.
        transient_bytes: What the hungriest of its tasks takes on top.
        met_bytes: Buffers of groups of ranks, which stay once its tasks have met, but are a pool's only once.
        sharding: Of the weights of a role that generates; None for other roles.
    """

    chosen: tuple[tuple[str, LayoutColumns, int], ...]
    preparation_seconds: float
    training_seconds: float
    resident_bytes: int
    transient_bytes: int
    met_bytes: int = 0
    sharding: WeightSharding | None = None

    @property
    def layouts(self) -> Chosen:
        """Return the layouts by task name."""
        return tuple((name, columns.layout(row)) for name, columns, row in self.chosen)


@dataclass(slots=True)
class SearchCounts:
    """Count what a search looked at and what it dropped, by rule."""

    considered: dict[str, int] = field(default_factory=dict)
    pruned: dict[str, int] = field(default_factory=dict)

    def consider(self, what: str, count: int = 1) -> None:
        """Count candidates of one level."""
        self.considered[what] = self.considered.get(what, 0) + count

    def prune(self, rule: str, count: int = 1) -> None:
        """Count candidates dropped by one rule."""
        if count:
            self.pruned[rule] = self.pruned.get(rule, 0) + count


def sharding_of(train: TaskPlan, *, leaves: bool = False) -> WeightSharding:
    """Return how weights are sharded that train in a layout.

    Args:
        leaves: Whether weights leave the GPUs where the layout off-loads states.
    """
    # Optimizer states do not move; gradients that are sharded leave weights in shards as well.
    sharded = train.zero if train.zero >= GRADIENTS_SHARDED else 0
    return WeightSharding(
        train.tp,
        train.pp,
        train.cp,
        train.ep,
        train.expert_tp or 0,
        sharded,
        leaves and train.offload,
    )
