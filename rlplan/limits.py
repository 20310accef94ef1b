"""Annotated number types: what a field of a user's file accepts.

The annotations are read by `rlplan.decoding` (pydantic understands `annotated_types`) and end up
in the published JSON Schemas.
"""

from typing import Annotated

from annotated_types import Ge, Gt, Le

AtLeastOne = Annotated[int, Ge(1)]
NonNegative = Annotated[float, Ge(0)]
NonNegativeInt = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
Fraction = Annotated[float, Gt(0), Le(1)]
