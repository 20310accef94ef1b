"""Layouts of what a framework's trainer computes: one model's sizes, as training and as inference."""

from dataclasses import dataclass, replace

from rlplan.plan import Recompute, TaskPlan
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.sheets.hardware import EngineSheet


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSizes:
    """Hold the sizes of one role's model on its pool, as `rlplan.plan.TaskPlan` has them.

    Attributes:
        engine: Its engine sheet, where that is not the job's.
        micro_batch, token_budget: Of updates; the budget is of all context-parallel ranks together.
        infer_micro_batch, infer_token_budget: Of passes without an update.
        offload: Whether states leave the GPUs between uses.
        infer_offload: The same of weights that are only read; None is as `offload`.
        zero: None is fully sharded where the engine has that, else its highest stage.
    """

    pool: str
    engine: str | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    expert_tp: int | None = None
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    chunks: int = 1
    shard_ranks: int | None = None
    micro_batch: int = 1
    token_budget: int | None = None
    infer_micro_batch: int = 1
    infer_token_budget: int | None = None
    recompute: Recompute = "none"
    zero: int | None = None
    offload: bool = False
    infer_offload: bool | None = None


def trainer_task(sizes: TrainerSizes, engine: EngineSheet, *, trains: bool) -> TaskPlan:
    """Return the layout of one task of a trainer.

    Args:
        trains: Whether the task updates the model; else it only passes over it.
    """
    sharded = FULLY_SHARDED in engine.zero_stages
    highest = FULLY_SHARDED if sharded else max(engine.zero_stages)
    zero = min(highest, highest if sizes.zero is None else sizes.zero)
    budget = sizes.token_budget if trains else sizes.infer_token_budget
    single = sizes.micro_batch if trains else sizes.infer_micro_batch
    layout = TaskPlan(
        pool=sizes.pool,
        engine=engine.name,
        tp=sizes.tp,
        pp=sizes.pp,
        cp=sizes.cp,
        dp=sizes.dp,
        ep=sizes.ep,
        expert_tp=sizes.expert_tp,
        first_stage_layers=sizes.first_stage_layers,
        last_stage_layers=sizes.last_stage_layers,
        zero=zero,  # type: ignore[arg-type]
        shard_ranks=sizes.shard_ranks,
        micro_batch=1 if budget else single,
        token_budget=budget,
        offload=sizes.offload,
    )
    if trains:
        return replace(layout, recompute=sizes.recompute, chunks=sizes.chunks)
    if sizes.infer_offload is not None:
        layout = replace(layout, offload=sizes.infer_offload)
    return layout if zero == FULLY_SHARDED else replace(layout, zero=0, shard_ranks=None)
