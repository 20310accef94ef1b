"""Look-ups that are worked out once: a search asks the same few thousand questions 1e5 times."""

from collections.abc import Callable, Hashable
from functools import cache
from threading import Lock
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class remembered(Generic[P, R_co]):  # noqa: N801 -- a decorator, as `property` is one
    """Be a method that answers the same question of the same instance once.

    The instance's own cache takes the method's place in it, so that what is known costs no call.
    """

    def __init__(self, look_up: Callable[Concatenate[Any, P], R_co]) -> None:
        self._look_up = look_up
        self.__doc__ = look_up.__doc__

    def __get__(self, instance: object, owner: type) -> Callable[P, R_co]:
        """Return the instance's cache, made when it is first asked for."""
        asked = cast("Callable[P, R_co]", cache(self._look_up.__get__(instance, owner)))
        instance.__dict__[self._look_up.__name__] = asked
        return asked


class LeastRecentlyUsed(Generic[K, V]):
    """Cache values by their keys, for callers that compute several values at once, which `lru_cache` cannot take.

    Threads may share it, as they share what `lru_cache` keeps.

    Args:
        size: Most values that are kept; the least recently used one is dropped first.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[K, V] = {}  # those asked for last at the end
        self._guard = Lock()

    def get(self, key: K) -> V | None:
        """Return what is kept of a key; None where nothing is."""
        with self._guard:
            value = self._values.pop(key, None)
            if value is not None:
                self._values[key] = value
            return value

    def keep(self, key: K, value: V) -> None:
        """Keep a key's value, in place of what was kept of it."""
        with self._guard:
            self._values.pop(key, None)
            self._values[key] = value
            if len(self._values) > self._size:
                del self._values[next(iter(self._values))]

    def values(self) -> list[V]:
        """Return what is kept, that asked for last at the end."""
        with self._guard:
            return list(self._values.values())

    def clear(self) -> None:
        """Keep nothing any more."""
        with self._guard:
            self._values.clear()
