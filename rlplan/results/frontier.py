"""Plans of which none is better than another in everything that was asked for: a Pareto front."""

from dataclasses import dataclass

from rlplan.files.frozen import FrozenDict
from rlplan.results.searched import Candidate

FRONTIER_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """Hold one plan of a front, simulated.

    Attributes:
        values: By objective, what the plan is worth in the objective's unit; less is better.
        best_in: Objectives of which no plan has a better value: the front's ends.
        gap: By how much at most a plan could be better in the objective that was searched for, the
            others no worse; 0 is proven optimal under the cost model.
    """

    candidate: Candidate
    values: FrozenDict[str, float]
    best_in: tuple[str, ...]
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Hold the points of a front, the best in the first objective first.

    Attributes:
        units: By objective, the unit of its values.
        searches: Searches that it took.
    """

    version: int = FRONTIER_VERSION
    objectives: tuple[str, ...]
    units: FrozenDict[str, str]
    points: tuple[FrontierPoint, ...]
    searches: int
    search_seconds: float
