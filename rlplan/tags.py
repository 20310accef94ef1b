"""Marks on annotations that `rlplan.decoding` reads."""

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
