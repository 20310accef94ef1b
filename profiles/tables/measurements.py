"""The measured points of one device, arranged for look-up; each arrangement is built on first use."""

from bisect import bisect_left
from collections.abc import Mapping
from functools import cached_property
from typing import Final

import numpy as np

from rlplan.estimate import Estimate, Source
from rlplan.models.operators import Attention
from rlplan.models.precision import PRECISIONS, Precision
from rlplan.probing import ModelPass
from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.tables.lookup import Line, Scatter, Shape, measured, piecewise, relative_spread
from rlplan.profiles.tables.points import Key, Point, model_pass_keys
from rlplan.profiles.tables.remembered import remembered
from rlplan.profiles.tables.table import Profile

Batch = tuple[int, int]  # sequences, tokens of each
Group = tuple[str | int, ...]

# Passes whose seconds do not depend on a batch.
WITHOUT_BATCH: Final = frozenset({"optimizer", "gradient_reduction", "weight_sync"})
# A median of zero is below the clock's resolution; fits divide by seconds.
CLOCK_SECONDS: Final = 1e-9
# The parts that points of one length have apart: what grows with the batch, and what does not.
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
                layers: _Surface(str(group[0]), batches)
                for layers, batches in sorted(by_layers.items())
            }
            for group, by_layers in found.items()
        }

    def at(self, model_pass: ModelPass) -> Estimate | None:
        """Return the seconds of a pass; None when its model and layout were never measured."""
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


class _Surface:
    """Hold the seconds of one pass of one model over sequences and tokens."""

    def __init__(self, name: str, points: Mapping[Batch, Point]) -> None:
        self._name = name
        self._points = dict(sorted(points.items()))
        self._sequences = sorted({sequences for sequences, _ in self._points})
        self._tokens = sorted({tokens for _, tokens in self._points})
        self._weights = self._fit()
        self._scatter = Scatter(
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
    def line(self, table: str, group: Key) -> Line | None:
        """Return the points whose keys but the last are `group`, as a line over the last."""
        points = self._points(table)
        line = {int(key[-1]): point for key, point in points.items() if key[:-1] == group}
        return Line(line) if line else None

    @remembered
    def gemms(self, precision: Precision) -> Scatter | None:
        """Return the matrix products of a precision by (m, k, n)."""
        points: dict[Shape, Point] = {
            (int(m), int(k), int(n)): point
            for (its_precision, m, k, n), point in self._points("gemm").items()
            if its_precision == precision
        }

        def model_seconds(shape: Shape) -> float:
            m, k, n = shape
            return self._roofline.gemm(m, k, n, precision).seconds

        return Scatter(points, model_seconds) if points else None

    @remembered
    def attentions(self, heads: Shape, precision: Precision, backward: bool) -> Scatter | None:
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

        return Scatter(points, model_seconds) if points else None

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
