"""The measured points of one device, arranged for look-up; each arrangement is built on first use."""

from functools import cached_property

import numpy as np

from profiles.analytic.roofline import Roofline
from profiles.tables.lookup import Line, Scatter, Shape
from profiles.tables.passes import PassTable
from profiles.tables.points import Key, Point
from profiles.tables.remembered import remembered
from profiles.tables.table import Profile
from rlplan.estimate import Estimate, Source
from rlplan.models.operators import Attention
from rlplan.models.precision import PRECISIONS, Precision


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
