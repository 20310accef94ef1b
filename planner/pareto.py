"""Keep the choices that no other choice beats in everything that matters."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def front(items: Sequence[T], key: Callable[[T], tuple[float, ...]]) -> list[T]:
    """Return the items whose keys no other key matches or beats in every dimension.

    Lower is better. Of equal keys the first stays, so the result does not depend on anything but
    the order of `items`, which it keeps.
    """
    if len(items) < 2:  # noqa: PLR2004 - one item is its own front
        return list(items)
    keys = np.array([key(item) for item in items])
    order = np.lexsort(keys.T[::-1])
    kept: list[int] = []
    best = np.empty((0, keys.shape[1]))
    for index in order:
        if len(best) and bool(np.any(np.all(best <= keys[index], axis=1))):
            continue
        kept.append(int(index))
        best = np.vstack([best, keys[index]])
    return [items[index] for index in sorted(kept)]
