"""DP_PROTO: every rank gets a share, and all results count."""

from typing import Any

from rlplan.executor.parallel.positions import RankPositions
from rlplan.executor.workers.protocols import Split, from_all

collect = from_all


def distribute(positions: RankPositions, argument: Any, split: Split) -> dict[int, Any]:
    """Return a share for every rank."""
    return dict(enumerate(split(argument, positions.ranks)))
