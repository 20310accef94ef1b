"""Keep the choices that no other choice beats in everything that matters."""

from collections.abc import Callable, Hashable, Iterable, Sequence
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
    left = np.lexsort(keys.T[::-1])  # stable: of equal keys the first item stands first
    kept: list[int] = []
    while len(left):
        # Nothing that comes later in this order beats the first of what is left.
        best = left[0]
        kept.append(int(best))
        left = left[np.any(keys[left] < keys[best], axis=1)]
    return [items[index] for index in sorted(kept)]


def front_of_each(
    items: Iterable[T], kind: Callable[[T], Hashable], key: Callable[[T], tuple[float, ...]]
) -> list[T]:
    """Return the fronts of the items of each kind: what is of another kind beats nothing."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(kind(item), []).append(item)
    return [item for group in groups.values() for item in front(group, key)]


def unbeaten(
    items: Sequence[T], others: Sequence[T], key: Callable[[T], tuple[float, ...]]
) -> list[T]:
    """Return the items whose keys no key of `others` matches or beats in every dimension."""
    if not items:
        return []
    keys = np.array([key(item) for item in items])
    left = np.arange(len(items))
    for other in others:
        left = left[np.any(keys[left] < np.array(key(other)), axis=1)]
    return [items[int(index)] for index in left]
