"""What micro-batches of many layouts cost in the pipeline: `slot_of` in passes over arrays."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from rlplan.model import Head, ModelArchitecture
from rlplan.plan import Recompute, TaskPlan
from simulator.costs.layout_columns import Floats, LayoutColumns, by_kind
from simulator.costs.pipeline import layers_of_stages, send_seconds
from simulator.costs.pricing import Direction, Setting, pass_seconds
from simulator.model.operators import Batch


@dataclass(frozen=True, slots=True, eq=False)
class ManySlots:
    """Hold what one micro-batch costs in each layout's pipeline, in seconds.

    Attributes:
        forward, backward, recompute: On the slowest stage; shape (2, layouts), of which the first
            row is what it computes and the second what it exchanges with its group.
        others: All other stages' work on the micro-batch.
        send: Handing activations to the next stage, one way.
    """

    forward: Floats
    backward: Floats
    recompute: Floats
    others: Floats
    send: Floats


class Pricing:
    """Price the passes of one model with one head in many layouts.

    Args:
        setting_of: Returns the setting in which a layout's operators run.
        batch_of: Returns the micro-batch of so many sequences.
        trains: Whether backward passes follow.
    """

    def __init__(
        self,
        model: ModelArchitecture,
        head: Head,
        setting_of: Callable[[TaskPlan], Setting],
        batch_of: Callable[[int], Batch],
        *,
        trains: bool,
    ) -> None:
        self.model, self.head, self.trains = model, head, trains
        self._setting_of, self._batch_of = setting_of, batch_of

    def slots(self, columns: LayoutColumns) -> ManySlots:
        """Return what the micro-batches of all layouts cost."""
        layer, first, last = self._passes(columns)
        counts = by_kind(columns, ("pp",), self._stage_layers)
        alone = columns.pp == 1
        stages = np.array(
            [
                layer * counts[0] + first + last * alone,
                layer * counts[2] + last,
                layer * counts[1],
            ]
        )
        whole = stages.sum(axis=(1, 2))
        whole[1, alone] = -np.inf
        whole[2, columns.pp <= 2] = -np.inf  # noqa: PLR2004 -- only a third stage is in the middle
        chosen = np.take_along_axis(stages, np.argmax(whole, axis=0)[None, None, None], axis=0)[0]
        everything = (layer * self.model.num_layers + first + last).sum(axis=(0, 1))
        others = np.where(alone, 0.0, np.maximum(0.0, everything - whole.max(axis=0)))
        return ManySlots(chosen[0], chosen[1], chosen[2], others, self._sends(columns))

    def _passes(self, columns: LayoutColumns) -> Floats:
        """Return a layer's, the embedding's and the head's passes: (3, directions, 2, layouts)."""
        # Where a stage stands matters to groups beyond a tensor-parallel one only.
        beyond = columns.cp * columns.ep > 1
        placed = replace(columns, pp=np.where(beyond, columns.pp, 1))
        names = ("tp", "cp", "ep", "pp", "micro_batch", "recompute")
        return by_kind(placed, names, self._pass_numbers).reshape(3, 3, 2, len(columns))

    def _pass_numbers(self, layout: TaskPlan) -> tuple[float, ...]:
        recompute = layout.recompute if self.trains else None
        return _pass_numbers(
            self._setting_of(layout),
            self.model,
            self._batch_of(layout.micro_batch),
            self.head,
            recompute,
        )

    def _stage_layers(self, layout: TaskPlan) -> tuple[int, int, int]:
        counts = layers_of_stages(self.model.num_layers, layout.pp)
        return counts[0], counts[min(1, layout.pp - 1)], counts[-1]

    def _sends(self, columns: LayoutColumns) -> Floats:
        """Return the seconds of a send, which depends on pp by whether a boundary crosses nodes."""
        per_node = self._setting_of(columns.layout(0)).site.gpus_per_node
        crossing = np.where(columns.tp * columns.pp > per_node, per_node + 1, 2)
        placed = replace(columns, pp=np.where(columns.pp == 1, 1, crossing))
        return np.asarray(by_kind(placed, ("tp", "cp", "pp", "micro_batch"), self._send)[0])

    def _send(self, layout: TaskPlan) -> tuple[float]:
        setting, batch = self._setting_of(layout), self._batch_of(layout.micro_batch)
        return (send_seconds(setting, self.model, batch).seconds,)


@lru_cache(maxsize=65536)
def _pass_numbers(
    setting: Setting,
    model: ModelArchitecture,
    batch: Batch,
    head: Head,
    recompute: Recompute | None,
) -> tuple[float, ...]:
    """Return (layer, embedding, head) x (forward, backward, repeated) x (compute, collectives)."""
    directions: tuple[Direction, ...] = ("forward",)
    if recompute is not None:
        directions = ("forward", "backward", recompute)
    numbers: list[float] = []
    for direction in directions:
        each = pass_seconds(setting, model, "layer", batch, direction)
        if recompute == "alternate" and direction == recompute:
            each = each * 0.5
        numbers += [each.compute.seconds, each.collectives.seconds]
    numbers += [0.0] * (6 - len(numbers))
    # Embedding and head are outside the layers, and no mode computes them again.
    for part in ("embedding", "head"):
        for direction in directions[:2]:
            end = pass_seconds(
                setting,
                model,
                "embedding" if part == "embedding" else "head",
                batch,
                direction,
                *(() if part == "embedding" else (head,)),
            )
            numbers += [end.compute.seconds, end.collectives.seconds]
        numbers += [0.0] * (-len(numbers) % 6)
    return tuple(numbers)
