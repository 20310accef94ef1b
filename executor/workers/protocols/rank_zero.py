"""RANK_ZERO: the first rank alone is called."""

from typing import Any

from rlplan.executor.parallel.positions import RankPositions
from rlplan.executor.workers.protocols import ByRank, Join, Split


def distribute(_: RankPositions, argument: Any, __: Split) -> dict[int, Any]:
    """Return the argument for the first rank."""
    return {0: argument}


def collect(_: RankPositions, results: ByRank, __: Join) -> Any:
    """Return the first rank's result."""
    return results[0]
