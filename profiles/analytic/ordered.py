"""Distinct values, rows and quantiles of arrays, as `numpy.unique` and `numpy.quantile` have them.

Those two import numpy's masked arrays when they are first called, which takes a hundredth of a first search, and look at more than
the few hundred numbers that a search asks of at a time are worth.
"""

import math
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", bound=np.generic)
Ints = npt.NDArray[np.int64]
LARGEST_KEY: Final = int(np.iinfo(np.int64).max)


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


def row_keys(columns: Sequence[Ints], rows: int) -> Ints:
    """Return a whole number for each row, the same for those that are alike in all columns, and for no others. Shape (rows,).

    Columns are whole numbers of at least 0: digits of one number, as far as they fit into 64 bits; beyond that, places among
    the numbers that there are stand for them.
    """
    key, size = np.zeros(rows, dtype=np.int64), 1
    for column in columns:
        digit, width = column, int(column.max()) + 1
        if size * width > LARGEST_KEY:
            key, digit = (np.searchsorted(distinct(each), each) for each in (key, column))
            size, width = int(key.max()) + 1, int(digit.max()) + 1
        key, size = key * width + digit, size * width
    return key


def quantile_of(ordered: npt.NDArray[np.float64], share: float) -> float:
    """Return the value that a share of ascending ones is below, on straight lines between them."""
    place = share * (len(ordered) - 1)
    before = math.floor(place)
    low, high = float(ordered[before]), float(ordered[min(before + 1, len(ordered) - 1)])
    beyond = place - before
    # From the nearer end, as numpy has it: the same to the last digit.
    is_past_half = beyond >= 0.5  # noqa: PLR2004 -- half way
    return high - (high - low) * (1 - beyond) if is_past_half else low + (high - low) * beyond
