"""Claims of HybridFlow's evaluation (Sheng et al. 2025, section 8), each held against the forecasts.

A figure that the paper states is taken to hold when the forecast's is within 35 % of it; an order holds
when every point keeps it, or 95 of 100 where so many are compared.
"""

from collections.abc import Sequence

from planner.evaluation.hybridflow import mappings, speed_ups
from planner.evaluation.hybridflow.index import Points
from rlplan.results.reproduced import Claim, Point


def claims_of(points: Sequence[Point]) -> tuple[Claim, ...]:
    """Return every claim, marked."""
    index = Points(points)
    makers = (*speed_ups.CLAIMS, *mappings.CLAIMS)
    return tuple(claim for make in makers for claim in make(index))
