"""What a search found, and why the winner won: one plan, or a front of which none is better in everything that was asked for."""

from dataclasses import dataclass

from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan
from rlplan.results.forecast import Forecast
from rlplan.results.notebook import NotebookResult

SEARCH_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Hold a plan with its forecast, and what it loses to the winner.

    Attributes:
        loses_seconds: Iteration seconds above the winner's.
        loses_to: Where the loss comes from: by stage, seconds above (or below) the winner's.
        gap: How far the best plan of its placement may be below it; 0 means proven optimal.
    """

    plan: Plan
    forecast: Forecast
    loses_seconds: float
    loses_to: FrozenDict[str, float]
    gap: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InfeasiblePlacement:
    """Say why a placement has no feasible plan, by the candidate that came nearest."""

    placement: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult(NotebookResult):
    """Hold the plans found, best first, with the certificate.

    Attributes:
        plans: At least the best plan of every placement that has a feasible one.
        considered: Candidates that were looked at, by level.
        pruned: Candidates dropped, by rule.
        bound_seconds: No plan in the space is faster than this.
        gap: (best - bound) / best; 0 means proven optimal under the cost model.
        space: In words, the plans of which the best is meant.
    """

    version: int = SEARCH_VERSION
    plans: tuple[Candidate, ...]
    infeasible: tuple[InfeasiblePlacement, ...]
    considered: FrozenDict[str, int]
    pruned: FrozenDict[str, int]
    bound_seconds: float
    gap: float
    search_seconds: float
    profile: str
    space: str = ""


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
