"""Keep the choices that no other choice beats in everything that matters."""

from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[Any]
Places = npt.NDArray[np.int64]


def front_rows(keys: Rows) -> Places:
    """Return the places of the rows that no other row matches or beats in every column, ascending.

    Lower is better. Of equal rows the first stays, so the result depends on nothing but the rows.

    Args:
        keys: Shape (rows, columns).
    """
    if len(keys) < 2:  # noqa: PLR2004 - one row is its own front
        return np.arange(len(keys))
    # By the sum of all columns, each on its own scale, what beats a row comes before it, and what
    # beats many comes early. Ties go by the columns, and then, the sort being stable, by place.
    spread = np.ptp(keys, axis=0)
    scaled = (keys - keys.min(axis=0)) / np.where(spread > 0, spread, 1)
    order = np.lexsort((*keys.T[::-1], scaled.sum(axis=1)))
    left = np.ascontiguousarray(keys[order].T)  # columns compare fastest one by one
    kept: list[int] = []
    while len(order):
        kept.append(int(order[0]))
        unbeaten = left[0] < left[0, 0]
        for column in left[1:]:
            unbeaten |= column < column[0]
        left, order = left.compress(unbeaten, axis=1), order[unbeaten]
    return np.array(sorted(kept), dtype=np.int64)


# Groups of fewer rows are reduced together, row by row of each; larger ones pay for themselves.
FEW_ROWS = 256


def front_of_groups(keys: Rows, groups: Places) -> Places:
    """Return the places of the fronts of all groups, ascending: other groups' rows beat nothing."""
    if len(keys) < 2:  # noqa: PLR2004 - one row is its own front
        return np.arange(len(keys))
    order = np.argsort(groups, kind="stable")
    edges = np.flatnonzero(np.diff(groups[order])) + 1
    parts = np.split(order, edges)
    kept = [part[front_rows(keys[part])] for part in parts if len(part) > FEW_ROWS]
    few = [part for part in parts if len(part) <= FEW_ROWS]
    if few:
        places = np.sort(np.concatenate(few))
        kept.append(places[_fronts_together(keys[places], groups[places])])
    return np.sort(np.concatenate(kept))


def _fronts_together(keys: Rows, groups: Places) -> Places:
    """Return the places of the fronts of groups, in any order, as `front_rows` finds each of them."""
    spread = np.ptp(keys, axis=0)
    scaled = (keys - keys.min(axis=0)) / np.where(spread > 0, spread, 1)
    order = np.lexsort((*keys.T[::-1], scaled.sum(axis=1), groups))
    left, group = np.ascontiguousarray(keys[order].T), groups[order]
    kept: list[Places] = []
    while len(order):
        begins = np.concatenate([[True], group[1:] != group[:-1]])
        kept.append(order[begins])
        own = np.cumsum(begins) - 1
        unbeaten = np.zeros(len(order), dtype=bool)
        for column in left:
            unbeaten |= column < column[begins][own]
        left, order, group = left.compress(unbeaten, axis=1), order[unbeaten], group[unbeaten]
    return np.concatenate(kept)
