"""Points of HybridFlow's evaluation by their place, and what a claim's figure must keep to."""

from collections.abc import Iterator, Sequence

from rlplan.evals.claims import Bound
from rlplan.evals.claims import near as bound_near
from rlplan.evals.hybridflow.points import HYBRIDFLOW
from rlplan.results.accuracy import Point

# Within what a forecast bears out a figure that the paper states: what single forecasts are held to.
WITHIN_FRACTION = 0.35


class Points:
    """Find points, and forecasts of the points that have one."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._known = {(each.figure, each.panel, each.series, each.gpus): each for each in points}

    def plan(self, figure: str, panel: str, series: str, gpus: int) -> str:
        """Return a point's plan in words; empty where nothing fits or there is no such point."""
        found = self._known.get((figure, panel, series, gpus))
        return found.plan if found and found.forecast is not None else ""

    def panels(self, *figures: str) -> Iterator[tuple[str, str, int]]:
        """Yield each (figure, panel, GPUs) of some figures once."""
        yield from dict.fromkeys(
            (figure, panel, gpus) for figure, panel, _, gpus in self._known if figure in figures
        )

    def series(self, figure: str, panel: str, gpus: int) -> dict[str, float]:
        """Return the forecasts of every series at a place."""
        return {
            point.series: point.forecast
            for (a, b, _, d), point in self._known.items()
            if (a, b, d) == (figure, panel, gpus) and point.forecast is not None
        }

    def published(self, figure: str, panel: str, gpus: int) -> dict[str, float]:
        """Return the published values of every series at a place."""
        return {
            point.series: point.published
            for (a, b, _, d), point in self._known.items()
            if (a, b, d) == (figure, panel, gpus) and point.published is not None
        }

    def speed_ups(self, figure: str, peer: str) -> dict[tuple[str, int], float]:
        """Return how many times as fast HybridFlow is as a peer, by panel and GPUs."""
        found = {}
        for _, panel, gpus in self.panels(figure):
            values = self.series(figure, panel, gpus)
            if peer in values and HYBRIDFLOW in values:
                found[panel, gpus] = values[HYBRIDFLOW] / values[peer]
        return found


def near(stated: float) -> Bound:
    """Return what a forecast figure must keep to that bears a stated one out."""
    return bound_near(stated, WITHIN_FRACTION)
