"""Layouts as columns of whole numbers, one row each."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np
import numpy.typing as npt

from rlplan.plan import LAYOUT_FIELDS, Recompute, TaskPlan
from rlplan.profiles.analytic.ordered import row_keys

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

RECOMPUTES: Final[tuple[Recompute, ...]] = get_args(Recompute)

# The fields of `rlplan.plan.TaskPlan` that are columns, and those of them that may be None.
_SEARCHED: Final = [item for item in LAYOUT_FIELDS if item.metadata.get("column", True)]
COLUMNS: Final = tuple(item.name for item in _SEARCHED)
OPEN_COLUMNS: Final = tuple(item.name for item in _SEARCHED if item.default is None)
# Columns that decide a rank's share of a layer's weights and tokens (`shard_of`).
SHARD_COLUMNS: Final = ("tp", "cp", "ep", "expert_tp")


class LayoutColumns:
    """Hold layouts that infer or train with one engine, one row each: a column of whole numbers for each of `COLUMNS`.

    What a layout leaves open is 0, `recompute` a place in `RECOMPUTES`, `offload` 0 or 1.
    """

    def __init__(self, *, engine: str, **columns: Ints) -> None:
        assert set(columns) == set(COLUMNS), "a column for each"
        self.engine = engine
        self.__dict__.update(columns)
        self._grouped: dict[tuple[str, ...], tuple[Ints, Ints]] = {}

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Ints:
            """Return a column."""

    def changed(self, **columns: Ints) -> "LayoutColumns":
        """Return these layouts with other columns."""
        return LayoutColumns(
            engine=self.engine, **{name: getattr(self, name) for name in COLUMNS} | columns
        )

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def state_ranks(self) -> Ints:
        """Return the ranks over which a model's states may be sharded."""
        return np.where(self.shard_ranks > 0, self.shard_ranks, self.dp * self.cp)

    @property
    def expert_spread(self) -> Floats:
        """Return by how many times fewer ranks have copies of an expert than of all else."""
        width = np.where(self.expert_tp > 0, self.expert_tp, self.tp)
        return self.ep * width / self.tp

    def rows(self, chosen: Ints | Flags) -> "LayoutColumns":
        """Return the chosen rows, by place or by flag."""
        return LayoutColumns(
            engine=self.engine, **{name: getattr(self, name)[chosen] for name in COLUMNS}
        )

    def groups(self, names: tuple[str, ...]) -> tuple[Ints, Ints]:
        """Return the first row of each of some columns' values, and for each row the place of its own there."""
        if names not in self._grouped:
            key = row_keys([getattr(self, name) for name in names], len(self))
            # Rows of one cut stand together: one of each run is sorted.
            heads = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
            _, first, inverse = np.unique(key[heads], return_index=True, return_inverse=True)
            lengths = np.diff(heads, append=len(key))
            self._grouped[names] = heads[first], np.repeat(inverse, lengths)
        return self._grouped[names]

    def layout(self, row: int) -> TaskPlan:
        """Return one row as a layout whose pool is still open."""
        return self.layouts(np.array([row]))[0]

    def layouts(self, rows: Ints) -> list[TaskPlan]:
        """Return rows as layouts whose pools are still open."""
        chosen = [getattr(self, name)[rows].tolist() for name in COLUMNS]
        return [_layout_of(self.engine, row) for row in zip(*chosen, strict=True)]


@lru_cache(maxsize=16384)
def _layout_of(engine: str, row: tuple[int, ...]) -> TaskPlan:
    """Return a row of columns as a layout, remembered: tasks, and questions about them, share most layouts."""
    values = dict(zip(COLUMNS, row, strict=True))
    told: dict[str, Any] = values | {name: values[name] or None for name in OPEN_COLUMNS}
    told |= {"recompute": RECOMPUTES[values["recompute"]], "offload": bool(values["offload"])}
    return TaskPlan(pool="", engine=engine, **told)


def columns_of(engine: str, layouts: Sequence[TaskPlan]) -> LayoutColumns:
    """Return layouts of one engine as columns."""
    rows = [
        [
            RECOMPUTES.index(layout.recompute)
            if name == "recompute"
            else int(getattr(layout, name) or 0)
            for name in COLUMNS
        ]
        for layout in layouts
    ]
    table = np.array(rows, dtype=np.int64).reshape(len(rows), len(COLUMNS))
    return LayoutColumns(
        engine=engine, **{name: table[:, place] for place, name in enumerate(COLUMNS)}
    )
