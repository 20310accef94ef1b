"""What a search found, and why the winner won."""

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
