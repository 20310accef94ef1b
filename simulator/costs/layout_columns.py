"""Many layouts of one task as columns, which are costed together in passes over arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from rlplan.plan import Recompute, TaskPlan

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Zero = Literal[0, 1, 2, 3]

RECOMPUTES: Final[tuple[Recompute, ...]] = ("none", "selective", "alternate", "full")
ZEROS: Final[tuple[Zero, ...]] = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayoutColumns:
    """Hold layouts that infer or train with one engine, one row each.

    Attributes:
        recompute: Places in `RECOMPUTES`.
        offload: 0 or 1.
    """

    engine: str
    tp: Ints
    pp: Ints
    dp: Ints
    cp: Ints
    ep: Ints
    zero: Ints
    micro_batch: Ints
    chunks: Ints
    recompute: Ints
    offload: Ints

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def ranks(self) -> Ints:
        """Return the ranks over which a model's states may be sharded."""
        return self.dp * self.cp

    def rows(self, chosen: Ints | Flags) -> "LayoutColumns":
        """Return the chosen rows, by place or by flag."""
        return LayoutColumns(
            engine=self.engine, **{name: getattr(self, name)[chosen] for name in COLUMNS}
        )

    def layout(self, row: int) -> TaskPlan:
        """Return one row as a layout whose pool is still open."""
        return TaskPlan(
            pool="",
            engine=self.engine,
            tp=int(self.tp[row]),
            pp=int(self.pp[row]),
            dp=int(self.dp[row]),
            cp=int(self.cp[row]),
            ep=int(self.ep[row]),
            zero=ZEROS[int(self.zero[row])],
            micro_batch=int(self.micro_batch[row]),
            chunks=int(self.chunks[row]),
            recompute=RECOMPUTES[int(self.recompute[row])],
            offload=bool(self.offload[row]),
        )


COLUMNS: Final = tuple(item.name for item in fields(LayoutColumns) if item.name != "engine")


def columns_of(engine: str, layouts: Sequence[TaskPlan]) -> LayoutColumns:
    """Return layouts of one engine as columns."""
    rows = [
        [
            RECOMPUTES.index(layout.recompute)
            if name == "recompute"
            else int(getattr(layout, name))
            for name in COLUMNS
        ]
        for layout in layouts
    ]
    table = np.array(rows, dtype=np.int64).reshape(len(rows), len(COLUMNS))
    return LayoutColumns(
        engine=engine, **{name: table[:, place] for place, name in enumerate(COLUMNS)}
    )


def by_kind(
    columns: LayoutColumns, names: Sequence[str], numbers: Callable[[TaskPlan], Sequence[float]]
) -> Floats:
    """Return numbers that depend on some columns only, asked once for each of their values.

    Args:
        numbers: Answers for a layout; what it does not depend on is that of any row.

    Returns:
        Shape (how many numbers, rows).
    """
    key = np.zeros(len(columns), dtype=np.int64)
    for name in names:
        column = getattr(columns, name)
        key = key * (int(column.max()) + 1) + column
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    asked = np.array([numbers(columns.layout(int(row))) for row in first], dtype=np.float64)
    return asked.T[:, inverse]
