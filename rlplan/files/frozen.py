"""An immutable mapping: types that hold one stay hashable."""

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar, get_args

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """Hold a mapping that refuses every change and hashes by its content.

    It is a `dict`, so JSON, YAML and dataclass encoders take it as it is.
    """

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:  # type: ignore[override]
        try:
            return self._hash
        except (
            AttributeError
        ):  # worked out once: jobs, which hold several, are looked up all the time
            self._hash = hash(frozenset(self.items()))
            return self._hash

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this mapping is frozen; build a new one with `with_item`")

    __setitem__ = __delitem__ = pop = popitem = clear = _refuse
    update = setdefault = __ior__ = _refuse

    def with_item(self, key: K, value: V) -> "FrozenDict[K, V]":
        """Return a copy in which `key` has `value`."""
        return FrozenDict({**self, key: value})

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Let `rlplan.files.decoding` read a mapping of this type, keeping the key in error locations."""
        from pydantic_core import core_schema

        key, value = get_args(source)
        inner = handler.generate_schema(dict[key, value])  # type: ignore[valid-type]
        return core_schema.no_info_after_validator_function(
            cls, inner, serialization=core_schema.plain_serializer_function_ser_schema(dict)
        )

    def __reduce__(self) -> tuple[type["FrozenDict[K, V]"], tuple[dict[K, V]]]:
        return (FrozenDict, (dict(self),))


def freeze(mapping: Mapping[K, V]) -> FrozenDict[K, V]:
    """Return `mapping` as a FrozenDict, itself if it is one already."""
    return mapping if isinstance(mapping, FrozenDict) else FrozenDict(mapping)
