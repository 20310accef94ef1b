"""The measured points of one device, arranged for look-up; each arrangement is built on first use."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from rlplan.estimate import Estimate, Source
from rlplan.models import PRECISIONS, Attention, Precision
from rlplan.probing import ModelPass
from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.tables.remembered import remembered
from rlplan.profiles.tables.table import Key, Point, Profile, model_pass_keys

# Read between measured points: along a line, or among scattered shapes.
#
# Both reproduce every measured point exactly, say when a look-up leaves the measured range, and
# take their spread from the points and from how well each point is foretold by the others.

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


class LinearInterpolation:
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
    """Return y at `x` on the straight lines through sorted points, continued as `LinearInterpolation` says."""
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


class RatioInterpolation:
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


Batch = tuple[int, int]  # sequences, tokens of each
Group = tuple[str | int, ...]

# Passes whose seconds do not depend on a batch.
WITHOUT_BATCH: Final = frozenset({"optimizer", "gradient_reduction", "weight_sync"})
# A median of zero is below the clock's resolution; fits divide by seconds.
CLOCK_SECONDS: Final = 1e-9
# Parts that points of a single length can separate: one that grows with the batch, and one that does not.
TOLD_AT_ONE_LENGTH: Final = 2


class PassTable:
    """Look up passes of models that were measured whole."""

    def __init__(self, points: Mapping[Key, Point]) -> None:
        found: dict[Group, dict[int, dict[Batch, Point]]] = {}
        for key, point in points.items():
            name, model, layers, head, precision, tp, dp, sequences, tokens = key
            group = (name, model, head, precision, tp, dp)
            batch = _batch(str(name), int(sequences), int(tokens))
            found.setdefault(group, {}).setdefault(int(layers), {})[batch] = point
        self._groups = {
            group: {
                layers: _PassSurface(str(group[0]), batches)
                for layers, batches in sorted(by_layers.items())
            }
            for group, by_layers in found.items()
        }

    def at(self, model_pass: ModelPass) -> Estimate | None:
        """Return the seconds of a pass; None when its model and layout were never measured."""
        if not self._groups:
            return None
        keys = model_pass_keys(model_pass)
        group = tuple(keys[column] for column in ("name", "model", "head", "precision", "tp", "dp"))
        surfaces = self._groups.get(group)
        if surfaces is None:
            return None
        batch = _batch(model_pass.name, model_pass.sequences, model_pass.tokens)
        layers = model_pass.model.num_layers
        if layers in surfaces:
            return surfaces[layers].at(batch)
        return _between_layers(layers, {each: line.at(batch) for each, line in surfaces.items()})


def _batch(name: str, sequences: int, tokens: int) -> Batch:
    return (1, 1) if name in WITHOUT_BATCH else (sequences, tokens)


def _between_layers(layers: int, estimates: Mapping[int, Estimate]) -> Estimate:
    """Return the seconds at a number of layers that was not measured.

    From one measured number alone, the seconds are taken in proportion to the layers.
    """
    xs = list(estimates)
    ys = [estimate.seconds for estimate in estimates.values()]
    seconds = ys[0] * layers / xs[0] if len(xs) == 1 else piecewise(xs, ys, layers)
    outside = not xs[0] <= layers <= xs[-1]
    relative = max(
        each.spread_seconds / each.seconds if each.seconds > 0 else 0.0
        for each in estimates.values()
    )
    return Estimate(
        seconds,
        seconds * relative,
        max(Source.INTERPOLATED, *(each.source for each in estimates.values())),
        outside or any(each.outside_range for each in estimates.values()),
    )


class _PassSurface:
    """Hold the seconds of one pass of one model over sequences and tokens."""

    def __init__(self, name: str, points: Mapping[Batch, Point]) -> None:
        self._name = name
        self._points = dict(sorted(points.items()))
        self._sequences = sorted({sequences for sequences, _ in self._points})
        self._tokens = sorted({tokens for _, tokens in self._points})
        self._weights = self._fit()
        self._scatter = RatioInterpolation(
            {tuple(batch): point for batch, point in self._points.items()},
            lambda shape: self._fitted_seconds((shape[0], shape[1])),
        )

    def at(self, batch: Batch) -> Estimate:
        point = self._points.get(batch)
        if point is not None:
            return measured(point)
        return self._inside_cell(batch) or self._scatter.at(batch)

    def _inside_cell(self, batch: Batch) -> Estimate | None:
        """Return the bilinear value when all corners of the cell around a batch were measured."""
        rows = _neighbours(self._sequences, batch[0])
        columns = _neighbours(self._tokens, batch[1])
        corners = [(row, column) for row in rows for column in columns]
        if not corners or not all(corner in self._points for corner in corners):
            return None
        points = [self._points[corner] for corner in corners]
        by_row = [
            piecewise(
                columns, [self._points[row, column].seconds_mean for column in columns], batch[1]
            )
            for row in rows
        ]
        seconds = piecewise(rows, by_row, batch[0])
        relative = max(self._scatter.relative_spread, *map(relative_spread, points))
        source = max(Source.INTERPOLATED, *(measured(point).source for point in points))
        return Estimate(seconds, seconds * relative, source)

    def _fit(self) -> tuple[float, ...]:
        """Return non-negative weights of the parts of the work, least relative squares.

        Non-negative weights make the fit grow with the work, also far outside the points.
        """
        rows = np.array([_parts(self._name, batch) for batch in self._points], dtype=np.float64)
        if (
            len(self._tokens) == 1
        ):  # points of one length tell no part that grows with it from another
            rows = rows[:, :TOLD_AT_ONE_LENGTH]
        seconds = np.array([point.seconds_mean for point in self._points.values()])
        seconds = np.maximum(seconds, CLOCK_SECONDS)
        if len(self._points) == 1:
            return (float(seconds[0] / rows[0, 0]),)
        relative = rows / seconds[:, None]
        scale = relative.max(axis=0)
        from scipy.optimize import nnls  # noqa: PLC0415 -- only where passes were measured

        weights, _ = nnls(relative / scale, np.ones(len(seconds)))
        return tuple(float(weight) for weight in weights / scale)

    def _fitted_seconds(self, batch: Batch) -> float:
        parts = _parts(self._name, batch)[: len(self._weights)]
        seconds = sum(weight * part for weight, part in zip(self._weights, parts, strict=True))
        return max(seconds, CLOCK_SECONDS)


def _parts(name: str, batch: Batch) -> tuple[float, ...]:
    """Return the parts of a pass's work; the first alone is used when one point is known."""
    sequences, tokens = batch
    if name in WITHOUT_BATCH:
        return (1.0,)
    if name == "call":
        return (1.0, float(tokens))  # the bytes that are passed
    if name.startswith("decode"):
        return (float(sequences), 1.0, float(sequences * tokens))
    return (
        float(sequences * tokens),
        1.0,
        float(sequences),
        float(sequences * tokens * tokens),
    )


def _neighbours(values: list[int], value: int) -> list[int]:
    """Return the value itself if it is listed, or the two listed ones around it, or nothing."""
    index = bisect_left(values, value)
    if index < len(values) and values[index] == value:
        return [value]
    if 0 < index < len(values):
        return [values[index - 1], values[index]]
    return []


class Measurements:
    """Arrange a profile's points by what makes them comparable; without a profile there are none."""

    def __init__(self, profile: Profile | None, roofline: Roofline) -> None:
        self._profile = profile
        self._roofline = roofline

    def _points(self, table: str) -> dict[Key, Point]:
        return dict(self._profile.points(table)) if self._profile else {}

    @remembered
    def line(self, table: str, group: Key) -> LinearInterpolation | None:
        """Return the points whose keys but the last are `group`, as a line over the last."""
        points = self._points(table)
        line = {int(key[-1]): point for key, point in points.items() if key[:-1] == group}
        return LinearInterpolation(line) if line else None

    @remembered
    def gemms(self, precision: Precision) -> RatioInterpolation | None:
        """Return the matrix products of a precision by (m, k, n)."""
        points: dict[Shape, Point] = {
            (int(m), int(k), int(n)): point
            for (its_precision, m, k, n), point in self._points("gemm").items()
            if its_precision == precision
        }

        def model_seconds(shape: Shape) -> float:
            m, k, n = shape
            return self._roofline.gemm(m, k, n, precision).seconds

        return RatioInterpolation(points, model_seconds) if points else None

    @remembered
    def attentions(
        self, heads: Shape, precision: Precision, backward: bool
    ) -> RatioInterpolation | None:
        """Return the attentions of these heads by (batch, query tokens, cached tokens).

        Args:
            heads: Query heads, KV heads, dimension of a head.
        """
        group: Key = ("backward" if backward else "forward", precision)
        points: dict[Shape, Point] = {
            (int(key[2]), int(key[3]), int(key[4])): point
            for key, point in self._points("attention").items()
            if key[:2] == group and key[5:] == heads
        }

        def model_seconds(shape: Shape) -> float:
            (batch, query_tokens, cached_tokens), (q_heads, kv_heads, head_dim) = shape, heads
            sizes = (batch, query_tokens, cached_tokens, q_heads, kv_heads, head_dim)
            operator = Attention("attention", *sizes)
            return self._roofline.attention(operator, precision, backward=backward).seconds

        return RatioInterpolation(points, model_seconds) if points else None

    @cached_property
    def memory_ratio(self) -> Estimate | None:
        """Return the measured seconds of norms over their roofline: a factor with its spread."""
        ratios = []
        for (direction, precision, tokens, hidden), point in self._points("norm").items():
            if direction == "forward":
                value_bytes = PRECISIONS[precision].weight_bytes  # type: ignore[index]
                # A norm reads and writes every value once.
                num_bytes = 2 * value_bytes * int(tokens) * int(hidden)
                roofline = self._roofline.memory_bound(num_bytes).seconds
                ratios.append(point.seconds_mean / roofline)
        if not ratios:
            return None
        # Two standard deviations lie between the 16th and the 84th percentile.
        low, median, high = np.percentile(ratios, (16, 50, 84))
        return Estimate(float(median), float(high - low) / 2, Source.FITTED)

    @cached_property
    def passes(self) -> PassTable:
        """Return the whole passes of models."""
        return PassTable(self._points("model_pass"))
