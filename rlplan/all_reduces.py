"""What an engine's own all-reduce takes inside a node, as its sheet says it: measured, by ranks and bytes."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import Positive

FEWEST_RANKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduces:
    """Say what all-reduces by an engine's own kernels take inside a node whose GPUs all reach one another.

    Such a kernel sends everything to every rank while that is little, and a part to each beyond some size, for a second round
    of waiting: seconds leap there, which no rate follows.

    Attributes:
        link_bytes_per_second: Of the measured device's links, of each GPU and in one direction.
        seconds: By ranks, by the bytes of a tensor.
    """

    link_bytes_per_second: Positive
    seconds: FrozenDict[int, FrozenDict[int, Positive]]

    def __post_init__(self) -> None:
        """Refuse tables that cannot be read off.

        Raises:
            ValueError: Names the ranks whose sizes do not rise, or that are no group.
        """
        for ranks, row in self.seconds.items():
            sizes = list(row)
            if ranks < FEWEST_RANKS or not sizes or any(a >= b for a, b in pairwise(sizes)):
                raise ValueError(f"all-reduces of {ranks} ranks have no sizes that rise")

    @property
    def most_ranks(self) -> int:
        """Return the largest group that was measured."""
        return max(self.seconds)

    def most_bytes(self, ranks: int) -> int:
        """Return the largest tensor that was measured for so many ranks."""
        return max(self._row(ranks))

    def holds(self, ranks: int, num_bytes: float) -> bool:
        """Tell whether so large a group and tensor were measured."""
        return ranks <= self.most_ranks and num_bytes <= self.most_bytes(ranks)

    def seconds_of(self, ranks: int, num_bytes: float, link_bytes_per_second: float) -> float:
        """Return the seconds of a tensor, on straight lines between measured sizes; of larger ones those of the largest.

        Links that are slower than the measured ones' add what the bytes of each rank take longer.

        Args:
            ranks: At most `most_ranks`; the next larger group's stand for groups that were not measured.
            num_bytes: Of the tensor.
            link_bytes_per_second: Of the device that is asked for.
        """
        row = self._row(ranks)
        sizes = list(row)
        held = min(max(num_bytes, sizes[0]), sizes[-1])
        at = max(1, bisect_left(sizes, held)) if len(sizes) > 1 else 0
        seconds = row[sizes[at]]
        if at:
            low, high = sizes[at - 1], sizes[at]
            seconds = row[low] + (held - low) / (high - low) * (row[high] - row[low])
        wire = 2 * held * (ranks - 1) / ranks
        slower = 1 / link_bytes_per_second - 1 / self.link_bytes_per_second
        return seconds + max(0.0, wire * slower)

    def _row(self, ranks: int) -> FrozenDict[int, float]:
        return self.seconds[min(each for each in self.seconds if each >= ranks)]
