"""Marks on annotations, and annotated number types: what a field of a user's file accepts.

The annotations are read by `rlplan.files.decoding` (pydantic understands `annotated_types`) and end up
in the published JSON Schemas.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le


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


# Beyond it a float, in which costs are computed, no longer tells whole numbers apart.
LARGEST_COUNT = 2**53

Number = Annotated[float, NotBool()]
AtLeastOne = Annotated[int, Ge(1), Le(LARGEST_COUNT), NotBool()]
NonNegative = Annotated[float, Ge(0), NotBool()]
NonNegativeInt = Annotated[int, Ge(0), Le(LARGEST_COUNT), NotBool()]
# Whole numbers stay whole numbers in files.
Updates = NonNegativeInt | NonNegative
Positive = Annotated[float, Gt(0), NotBool()]
Share = Annotated[float, Ge(0), Le(1), NotBool()]
Fraction = Annotated[float, Gt(0), Le(1), NotBool()]
