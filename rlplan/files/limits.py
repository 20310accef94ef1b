"""Annotated number types: what a field of a user's file accepts.

The annotations are read by `rlplan.files.decoding` (pydantic understands `annotated_types`) and end up
in the published JSON Schemas.
"""

from typing import Annotated

from annotated_types import Ge, Gt, Le

from rlplan.files.decoding import NotBool

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
