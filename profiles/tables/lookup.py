"""Read between measured points: along a line, or among scattered shapes.

Both reproduce every measured point exactly, say when a look-up leaves the measured range, and
take their spread from the points and from how well each point is foretold by the others.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from rlplan.estimate import Estimate, Source
from rlplan.profiles.tables.points import Point

Floats = npt.NDArray[np.float64]
Shape = tuple[int, ...]

# Inverse-distance weights (Shepard 1968): the fourth power keeps the nearest shapes in charge in
# up to three dimensions, and eight neighbours surround a shape in three.
DISTANCE_POWER: Final = 4
NEIGHBOURS: Final = 8
MOST_SORTED: Final = 256
MOST_LEFT_OUT: Final = 256


def measured(point: Point) -> Estimate:
    """Return a measured point as an estimate."""
    return Estimate(point.seconds_mean, point.spread_seconds, _source(point))


class Line:
    """Interpolate seconds linearly in one number, such as bytes or parameters.

    Beyond the last point the last segment's slope goes on; below the first the first segment's,
    though never below a share proportional to the work. A single point is continued in
    proportion upwards and kept downwards, so that nothing unknown becomes cheap.
    """

    def __init__(self, points: Mapping[int, Point]) -> None:
        assert points
        self._points = dict(sorted(points.items()))
        self._xs = list(self._points)
        self._ys = [point.seconds_mean for point in self._points.values()]
        self._source = max(Source.INTERPOLATED, *map(_source, self._points.values()))
        self._misfit = self._left_out_misfit()

    def at(self, x: float) -> Estimate:
        """Return the seconds at `x`."""
        if x in self._points:
            return measured(self._points[int(x)])
        seconds = piecewise(self._xs, self._ys, x)
        outside = not self._xs[0] <= x <= self._xs[-1]
        right = min(bisect_left(self._xs, x), len(self._xs) - 1)
        near = (self._points[self._xs[index]] for index in (max(right - 1, 0), right))
        relative = max(self._misfit, *(relative_spread(point) for point in near))
        return Estimate(seconds, seconds * relative, self._source, outside)

    def _left_out_misfit(self) -> float:
        """Return the median relative error of inner points foretold by their neighbours."""
        errors = []
        for index in range(1, len(self._xs) - 1):
            xs = [self._xs[index - 1], self._xs[index + 1]]
            ys = [self._ys[index - 1], self._ys[index + 1]]
            if self._ys[index] > 0:
                foretold = piecewise(xs, ys, self._xs[index])
                errors.append(abs(foretold / self._ys[index] - 1))
        return float(np.median(errors)) if errors else 0.0


def piecewise(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Return y at `x` on the straight lines through sorted points, continued as `Line` says."""
    if len(xs) == 1:
        return ys[0] * max(1.0, x / xs[0]) if xs[0] > 0 else ys[0]
    if x < xs[0]:
        on_line = _on_segment(xs, ys, 1, x)
        return min(max(on_line, ys[0] * max(x, 0.0) / xs[0]), ys[0])
    if x > xs[-1]:
        return max(_on_segment(xs, ys, len(xs) - 1, x), ys[-1])
    return _on_segment(xs, ys, max(bisect_left(xs, x), 1), x)


def _on_segment(xs: Sequence[float], ys: Sequence[float], right: int, x: float) -> float:
    left = right - 1
    share = (x - xs[left]) / (xs[right] - xs[left])
    return ys[left] + share * (ys[right] - ys[left])


class Scatter:
    """Interpolate among scattered shapes the ratio of measured seconds to a model's seconds.

    The model (a roofline, or a fit) carries the dependence on the work; the ratio varies slowly.
    Between two points that differ in one number only, the ratio is linear in its logarithm;
    elsewhere it is the mean of the nearest points' by inverse distance in the logarithms.
    """

    def __init__(
        self, points: Mapping[Shape, Point], model_seconds: Callable[[Shape], float]
    ) -> None:
        assert points
        self._points = dict(sorted(points.items()))
        self._model_seconds = model_seconds
        self._ratios = {
            shape: point.seconds_mean / model_seconds(shape)
            for shape, point in self._points.items()
        }
        self._logs = np.log1p(np.array(list(self._points), dtype=np.float64))
        self._values = np.array(list(self._ratios.values()))
        self._lines = [self._lines_along(axis) for axis in range(self._logs.shape[1])]
        self._low, self._high = self._logs.min(axis=0), self._logs.max(axis=0)
        self._source = max(Source.INTERPOLATED, *map(_source, self._points.values()))
        spread = float(np.median([relative_spread(point) for point in self._points.values()]))
        self.relative_spread = max(spread, self._left_out_misfit())

    def at(self, shape: Shape) -> Estimate:
        """Return the seconds of an operation of this shape."""
        point = self._points.get(shape)
        if point is not None:
            return measured(point)
        logs = np.log1p(np.array(shape, dtype=np.float64))
        ratio = self._ratio_on_a_line(shape)
        if ratio is None:
            ratio = float(_nearest_mean(logs, self._logs, self._values))
        outside = bool(np.any(logs < self._low) or np.any(logs > self._high))
        seconds = ratio * self._model_seconds(shape)
        return Estimate(seconds, seconds * self.relative_spread, self._source, outside)

    def _lines_along(self, axis: int) -> dict[Shape, list[int]]:
        lines: dict[Shape, list[int]] = {}
        for shape in self._points:
            lines.setdefault(shape[:axis] + shape[axis + 1 :], []).append(shape[axis])
        return {others: line for others, line in lines.items() if len(line) > 1}

    def _ratio_on_a_line(self, shape: Shape) -> float | None:
        for axis, lines in enumerate(self._lines):
            line = lines.get(shape[:axis] + shape[axis + 1 :], [])
            if line and line[0] < shape[axis] < line[-1]:
                xs = [math.log1p(value) for value in line]
                ys = [self._ratios[(*shape[:axis], value, *shape[axis + 1 :])] for value in line]
                return piecewise(xs, ys, math.log1p(shape[axis]))
        return None

    def _left_out_misfit(self) -> float:
        """Return the median relative error of points foretold by all the others."""
        if len(self._values) == 1:
            return 0.0
        everyone = np.arange(len(self._values))
        # Every n-th point says as much of thousands as all of them.
        step = -(-len(self._values) // MOST_LEFT_OUT)
        errors = [
            abs(
                _nearest_mean(
                    self._logs[index],
                    self._logs[everyone != index],
                    self._values[everyone != index],
                )
                / value
                - 1
            )
            for index, value in list(enumerate(self._values))[::step]
            if value > 0
        ]
        return float(np.median(errors)) if errors else 0.0


def _nearest_mean(at: Floats, places: Floats, values: Floats) -> float:
    """Return the mean of the nearest values, weighted by inverse distance."""
    squares = ((places - at) ** 2).sum(axis=1)
    # Of thousands of places only the nearest are put in order.
    few = (
        np.flatnonzero(squares <= np.partition(squares, NEIGHBOURS)[NEIGHBOURS])
        if (len(squares) > MOST_SORTED)
        else np.arange(len(squares))
    )
    nearest = few[np.argsort(squares[few], kind="stable")[:NEIGHBOURS]]
    distances = np.sqrt(squares)
    weights = (distances[nearest[0]] / distances[nearest]) ** DISTANCE_POWER
    return float(weights @ values[nearest] / weights.sum())


def relative_spread(point: Point) -> float:
    """Return a point's spread over its median; 0 for a median of 0."""
    return point.spread_seconds / point.seconds_mean if point.seconds_mean > 0 else 0.0


def _source(point: Point) -> Source:
    return Source.MEASURED if point.source == "measured" else Source.FITTED
