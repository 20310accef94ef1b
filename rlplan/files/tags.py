"""Marks on annotations that `rlplan.files.decoding` reads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tag:
    """Say which field of a union's members tells them apart in a file."""

    field: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Read the union by this field, so that errors speak of the one member that was meant."""
        from pydantic import Discriminator

        return Discriminator(self.field).__get_pydantic_core_schema__(source, handler)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Accept the names of a folder's files, as they are when a file is first read."""

    names: Callable[[], tuple[str, ...]]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Read the value as one of these names."""
        from pydantic_core import core_schema

        return core_schema.literal_schema(list(self.names()))


@dataclass(frozen=True, slots=True)
class NotBool:
    """Refuse true and false where a number is meant; Python counts them as 1 and 0."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Look at the value before it is read as a number."""
        from pydantic_core import PydanticCustomError, core_schema

        def refuse(value: Any) -> Any:
            if isinstance(value, bool):
                raise PydanticCustomError("number_type", "must be a number, not true or false")
            return value

        return core_schema.no_info_before_validator_function(refuse, handler(source))
