"""3D_ALL_MICRO_DP: generation replicas, one for each member of a micro-DP group, get shares."""

from typing import Any

from rlplan.executor.parallel.positions import RankPositions
from rlplan.executor.workers.protocols import ByRank, Join, by_dp

distribute = by_dp


def collect(positions: RankPositions, results: ByRank, join: Join) -> Any:
    """Return the results of each replica's first rank."""
    return join([results[group[0]] for group in positions.first_groups()])
