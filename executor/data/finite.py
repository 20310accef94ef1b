"""Numbers that tasks hand on must be finite: what is learnt from others spoils the weights, and nothing says so later."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlplan.errors import DivergedError
from rlplan.executor.data.batches import Array, Columns

# Rewards are kept in 32 bits.
LARGEST = float(np.finfo(np.float32).max)


def reward_of(answer: Any) -> float | None:
    """Return what a reward function or an environment gave as a number; None where that is none, or is not finite in 32 bits."""
    try:
        number = float(answer)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) <= LARGEST else None  # NaN is not either


def check_finite(what: str, values: Array) -> None:
    """Refuse numbers that are not finite.

    Args:
        what: Which they are, for the message.
        values: Shape (rows, ...); whole numbers are finite.

    Raises:
        DivergedError: Says in how many rows, and the first of the numbers.
    """
    if not np.issubdtype(values.dtype, np.floating):
        return
    finite = np.isfinite(values)
    if finite.all():
        return
    rows = len(values) - int(finite.reshape(len(values), -1).all(axis=1).sum())
    found = values[~finite].flat[0]
    raise DivergedError(f"{what} are not finite in {rows} of {len(values)} rows (found {found})")


def check_columns(columns: Columns) -> None:
    """Refuse columns with numbers that are not finite.

    Raises:
        DivergedError: Names the column.
    """
    for name, values in columns.items():
        check_finite(name, values)


@contextmanager
def in_task(name: str) -> Iterator[None]:
    """Name the task whose numbers are not finite.

    Raises:
        DivergedError: As it was, behind the task's name.
    """
    try:
        yield
    except DivergedError as error:
        raise DivergedError(f"{name}: {error}") from None
