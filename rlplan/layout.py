"""Ranks and groups of a 3D-parallel layout, for training and for generation.

Ranks of a training layout p-t-d (PP, TP, DP): TP ranks are consecutive, then PP, then DP at stride
p * t. Generation groups of the hybrid engine lie inside one model-parallel block of p * t ranks
(Sheng et al. 2025, HybridFlow, section 5).
"""

from dataclasses import dataclass
from typing import Final, NamedTuple


class ModelCut(NamedTuple):
    """Say how a layout cuts a model's weights: all that formulas of what a device holds ask of it.

    Attributes:
        expert_tp: Ranks that each expert's width is cut over; 0 is tp.
        first_layers: Layers of the first pipeline stage; 0 shares layers out evenly.
        last_layers: Layers of the last pipeline stage; 0 shares layers out evenly.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    expert_tp: int = 0
    first_layers: int = 0
    last_layers: int = 0

    @property
    def expert_width(self) -> int:
        """Return the ranks that each expert's width is cut over."""
        return self.expert_tp or self.tp

    @property
    def of_layers(self) -> "ModelCut":
        """Return how each layer is cut, wherever it is: what does not ask for more is worked out once."""
        return ModelCut(tp=self.tp, ep=self.ep, expert_tp=self.expert_tp)

    @property
    def of_stages(self) -> "ModelCut":
        """Return how layers are shared out to stages, however each is cut."""
        return ModelCut(pp=self.pp, first_layers=self.first_layers, last_layers=self.last_layers)


WHOLE_MODEL: Final = ModelCut()


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Locate a rank in a training layout."""

    dp: int
    pp: int
    tp: int


def layers_of_stages(
    num_layers: int, stages: int, first: int = 0, last: int = 0
) -> tuple[int, ...]:
    """Return the layers of each pipeline stage; what does not divide goes to the first stages.

    The last stage has the output head, so that it never gets a layer more than the others.

    Args:
        first: Layers of the first stage, if it is said; 0 shares them out with the others.
        last: The same of the last stage.
    """
    between = stages - (first > 0) - (last > 0)
    each, rest = divmod(num_layers - first - last, max(1, between))
    shared = tuple(each + (1 if stage < rest else 0) for stage in range(between))
    return (first,) * (first > 0) + shared + (last,) * (last > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLayout:
    """Describe a training (or inference) layout of `pp * tp * dp` ranks."""

    pp: int
    tp: int
    dp: int

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return self.pp * self.tp * self.dp

    def coordinate(self, rank: int) -> Coordinate:
        """Return where a rank stands."""
        block, inside = divmod(rank, self.pp * self.tp)
        return Coordinate(dp=block, pp=inside // self.tp, tp=inside % self.tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateLayout:
    """Describe zero-redundancy groups p_g-t_g inside the model-parallel blocks of a training layout.

    Their ranks lie at intervals t/t_g and p/p_g, so that each rank's train shard is a slice of its generate shard.
    """

    train: TrainLayout
    pp: int
    tp: int

    def __post_init__(self) -> None:
        assert self.train.tp % self.tp == 0, "the generation TP size divides the training TP size"
        assert self.train.pp % self.pp == 0, "the generation PP size divides the training PP size"

    @property
    def micro_dp(self) -> int:
        """Return d_g = p * t / (p_g * t_g), the replicas inside one model-parallel block."""
        return self.train.pp * self.train.tp // (self.pp * self.tp)

    def shard(self, rank: int) -> tuple[int, int]:
        """Return the (pp, tp) position of a rank's generate shard."""
        at = self.train.coordinate(rank)
        return at.pp // (self.train.pp // self.pp), at.tp // (self.train.tp // self.tp)

    def replica(self, rank: int) -> int:
        """Return the generation replica that a rank belongs to, from 0, in rank order of their firsts."""
        at = self.train.coordinate(rank)
        pp_width, tp_width = self.train.pp // self.pp, self.train.tp // self.tp
        inside = (at.pp % pp_width) * tp_width + at.tp % tp_width
        return at.dp * self.micro_dp + inside

    def micro_dp_groups(self) -> tuple[tuple[int, ...], ...]:
        """Return the ranks that hold the same generate shard of one model-parallel block."""
        train = self.train
        stages, width = train.pp // self.pp, train.tp // self.tp  # that become one stage, one rank
        inside = [stage * train.tp + rank for stage in range(stages) for rank in range(width)]
        firsts = (
            stage * train.tp + rank
            for stage in range(0, train.dp * train.pp, stages)
            for rank in range(0, train.tp, width)
        )
        return tuple(tuple(first + each for each in inside) for first in firsts)
