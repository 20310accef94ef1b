"""Layouts of the tasks that a framework's trainer computes: training and inference with one model's sizes."""

from dataclasses import dataclass, replace
from typing import Any

from rlplan.plan import LAYOUT_FIELDS, TaskPlan
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.sheets import EngineSheet


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSizes(TaskPlan):
    """Hold the layout of one role's model on its pool as its updates have it, and in what its other passes differ.

    Attributes:
        engine: Its engine sheet, where that is not the job's; else empty.
        micro_batch, token_budget: Of updates; the budget is of all context-parallel ranks together.
        zero_stage: In place of `zero`; None is fully sharded where the engine has that, else its highest stage.
        infer_micro_batch, infer_token_budget: Of passes without an update.
        offload: Whether states leave the GPUs between uses.
        infer_offload: The same of weights that are only read; None is as `offload`.
    """

    zero_stage: int | None = None
    infer_micro_batch: int = 1
    infer_token_budget: int | None = None
    infer_offload: bool | None = None


def trainer_task(sizes: TrainerSizes, engine: EngineSheet, *, trains: bool) -> TaskPlan:
    """Return the layout of one task of a trainer.

    Args:
        trains: Whether the task updates the model; else it only passes over it.
    """
    sharded = FULLY_SHARDED in engine.zero_stages
    highest = FULLY_SHARDED if sharded else max(engine.zero_stages)
    zero = min(highest, highest if sizes.zero_stage is None else sizes.zero_stage)
    budget = sizes.token_budget if trains else sizes.infer_token_budget
    single = sizes.micro_batch if trains else sizes.infer_micro_batch
    given: dict[str, Any] = {each.name: getattr(sizes, each.name) for each in LAYOUT_FIELDS}
    given |= {"engine": engine.name, "zero": zero, "token_budget": budget}
    layout = TaskPlan(**given | {"micro_batch": 1 if budget else single})
    if trains:
        return layout
    layout = replace(layout, recompute="none", chunks=1)
    if sizes.infer_offload is not None:
        layout = replace(layout, offload=sizes.infer_offload)
    return layout if zero == FULLY_SHARDED else replace(layout, zero=0, shard_ranks=None)
