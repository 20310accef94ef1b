"""What a search may spend, and what it has found."""

import math
from dataclasses import dataclass

from planner.placements.mappings import Mapping
from rlplan.plan import Plan
from rlplan.results.forecast import Forecast


@dataclass(slots=True)
class Found:
    """Hold the best plan of a placement so far, and what none of its plans can beat.

    Attributes:
        value: Of the best plan, by the objective, for a whole iteration.
        bound: No plan of the placement has a lower value.
    """

    mapping: Mapping | None = None
    plan: Plan | None = None
    forecast: Forecast | None = None
    value: float = math.inf
    bound: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Limit what a search may spend; None is no limit.

    Attributes:
        plays: Generations that are played.
        simulations: Plans that are simulated.
        deadline: When to stop, by `time.perf_counter`.
    """

    plays: float = math.inf
    simulations: float = math.inf
    deadline: float = math.inf
