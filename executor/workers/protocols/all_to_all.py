"""ALL_TO_ALL: every rank gets an argument of its own, and all results count."""

from typing import Any

from rlplan.executor.parallel.positions import RankPositions
from rlplan.executor.workers.protocols import Split, from_all

collect = from_all


def distribute(positions: RankPositions, argument: Any, _: Split) -> dict[int, Any]:
    """Return every rank's argument."""
    assert len(argument) == positions.ranks, "one argument for every rank"
    return dict(enumerate(argument))
