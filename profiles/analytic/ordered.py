"""Distinct values and quantiles of arrays, as `numpy.unique` and `numpy.quantile` have them.

Those two import numpy's masked arrays when they are first called, which takes a hundredth of a first search, and look at more than
the few hundred numbers that a search asks of at a time are worth.
"""

import math
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", bound=np.generic)


def distinct(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return an array's values, ascending, each once. Shape (values,) in, (distinct values,) out."""
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def distinct_rows(rows: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return an array's rows in the order of their first column, then of the next, each once.

    Shape (rows, columns) in, (distinct rows, columns) out.
    """
    ordered = rows[np.lexsort(rows.T[::-1])] if rows.shape[1] else rows
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return ordered[is_first]


def quantile_of(ordered: npt.NDArray[np.float64], share: float) -> float:
    """Return the value that a share of ascending ones is below, on straight lines between them."""
    place = share * (len(ordered) - 1)
    before = math.floor(place)
    low, high = float(ordered[before]), float(ordered[min(before + 1, len(ordered) - 1)])
    beyond = place - before
    # From the nearer end, as numpy has it: the same to the last digit.
    is_past_half = beyond >= 0.5  # noqa: PLR2004 -- half way
    return high - (high - low) * (1 - beyond) if is_past_half else low + (high - low) * beyond
