"""Look-ups that are worked out once: a search asks the same few thousand questions 1e5 times."""

from collections.abc import Callable, Hashable
from functools import cache, cached_property, wraps
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


def kept_with(owner_of: Callable[P, object]) -> Callable[[Callable[P, V]], Callable[P, V]]:
    """Return a decorator that remembers a function's answers with one of the objects that it is asked of.

    They go when that object goes, while `lru_cache` holds it, and all that it knows, until enough others were asked. No
    answer is None.

    Args:
        owner_of: Tells the object, which has a dictionary of its own, from what is asked.
    """

    def decorated(look_up: Callable[P, V]) -> Callable[P, V]:
        name = f"{look_up.__module__}.{look_up.__qualname__}"

        @wraps(look_up)
        def asked(*args: P.args, **named: P.kwargs) -> V:
            known: dict[object, V] = owner_of(*args, **named).__dict__.setdefault(name, {})
            key = (*args, *named.items()) if named else args
            found = known.get(key)
            if found is None:
                found = known[key] = look_up(*args, **named)
            return found

        return asked

    return decorated


def forget_answers(owner: object) -> None:
    """Forget what is remembered with an object, and with what that has worked out itself, such as the steps of replicas.

    Whoever still holds it has its answers anew; what they take goes.
    """
    for name, value in list(vars(owner).items()):
        keeps = isinstance(value, dict) and "." in name  # as `kept_with` names it
        is_cached = hasattr(value, "cache_clear")
        if not (
            keeps or is_cached or isinstance(getattr(type(owner), name, None), cached_property)
        ):
            continue
        vars(owner).pop(name, None)
        for each in list(value.values()) if keeps else ():
            if hasattr(each, "__dict__"):
                forget_answers(each)


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
