"""3D_PP_ONLY: all ranks get one argument; a rank of each stage of the first copy answers."""

from typing import Any

from rlplan.executor.parallel.positions import RankPositions
from rlplan.executor.workers.protocols import ByRank, Join, to_all

distribute = to_all


def collect(positions: RankPositions, results: ByRank, join: Join) -> Any:
    """Return the results of each stage's first rank."""
    first = positions.groups()[0]
    return join([results[rank] for rank in first[:: positions.tp_size]])
