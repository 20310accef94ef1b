"""Layouts that a task can have on a pool: parallel sizes and batch settings, before any cost.

This is the space that is searched. `TaskPlan`s are for tests and single plans; a search takes the same
layouts as columns (`rlplan.simulator.placed.columns`).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np

from rlplan.job import Job
from rlplan.layout import layers_of_stages
from rlplan.models.model import ModelArchitecture
from rlplan.plan import TaskDraft, TaskPlan
from rlplan.planner.layouts.sizes import PoolCuts, Sizes, infer_cut, powers_of_two
from rlplan.profiles.sheets import load_framework
from rlplan.rules.batches import fills_rounds, rank_sequences
from rlplan.sheets.hardware import EngineSheet
from rlplan.simulator.placed.columns import RECOMPUTES, LayoutColumns
from rlplan.simulator.workload.packing import packed_sequences
from rlplan.workload.work import Workload

# vLLM's default is 256 running sequences (its EngineArgs.max_num_seqs); smaller limits save
# preemptions where the KV cache is small, and larger ones are worth a try where it is not.
RUNNING_LIMITS = (64, 256, 1024)


# Chunks of layers that interleaved pipeline schedules are tried with, as Narayanan et al. 2021
# (arXiv:2104.04473, section 5.3.2) do; each doubling halves the bubble and doubles the sends.
CHUNK_NUMBERS = (1, 2, 4, 8)


# Token budgets are multiples of it, so that context-parallel ranks, powers of two, have equal parts.
BUDGET_STEP = 64

# Budgets beyond the longest sequence are powers of two up to this one, 16 times the frameworks' usual 8,192 or 16,384
# (verl 0.9, ppo_max_token_len_per_gpu; OpenRLHF 0.9, train.max_tokens_per_gpu): passes of more tokens are no faster.
MOST_BUDGET_TOKENS = 2**17


class MicroBatch(NamedTuple):
    """Hold how a rank's sequences are put together: so many, or up to a budget of tokens; 0 counts sequences."""

    sequences: int
    token_budget: int = 0


class Setting(NamedTuple):
    """Hold what a layout has beside its sizes; `recompute` is a place in `RECOMPUTES`."""

    micro_batch: int
    token_budget: int = 0
    chunks: int = 1
    recompute: int = 0
    offload: int = 0


def train_settings(
    sizes: Sizes,
    model: ModelArchitecture,
    engine: EngineSheet,
    job: Job,
    draft: TaskDraft | None = None,
) -> tuple[Setting, ...]:
    """Return micro-batches, chunks, recomputation modes and offloading for a training layout."""
    local = rank_sequences(sizes.dp, job.workload, trains=True)
    recomputes = tuple(RECOMPUTES.index(mode) for mode in engine.recompute_modes)
    offloads = (0, 1) if "optimizer" in engine.offloads else (0,)
    draft = draft or TaskDraft()
    most = _most_chunks(sizes, model, engine, draft)
    return _train_settings(
        _micro_batches(draft, local, job, engine),
        local,
        sizes.pp,
        most,
        recomputes,
        offloads if draft.offload is None else (int(draft.offload),),
    )


@lru_cache(maxsize=4096)
def _train_settings(
    sizes: tuple[MicroBatch, ...],
    local: int,
    stages: int,
    most_chunks: int,
    recomputes: tuple[int, ...],
    offloads: tuple[int, ...],
) -> tuple[Setting, ...]:
    return tuple(
        Setting(*size, chunks, recompute, offload)
        for size in sizes
        for chunks in CHUNK_NUMBERS
        if chunks == 1
        or (most_chunks % chunks == 0 and fills_rounds(-(-local // size.sequences), stages))
        for recompute in recomputes
        for offload in offloads
    )


def _most_chunks(
    sizes: Sizes, model: ModelArchitecture, engine: EngineSheet, draft: TaskDraft
) -> int:
    """Return what chunks divide of every stage's layers; 1 where schedules do not interleave."""
    if not engine.interleaves or sizes.pp == 1:
        return 1
    ends = (draft.first_stage_layers or 0, draft.last_stage_layers or 0)
    return gcd(*layers_of_stages(model.num_layers, sizes.pp, *ends))


def infer_settings(
    sizes: Sizes,
    engine: EngineSheet,
    job: Job,
    draft: TaskDraft | None = None,
    *,
    trains: bool = False,
    alike: bool = False,
) -> tuple[Setting, ...]:
    """Return micro-batches and offloading for an inference layout.

    Args:
        trains: Whether the role trains too: its weights then are where they are trained, and leave the GPUs if the
            framework moves them with the states.
        alike: Whether a framework has one setting for all tasks of a role that trains, whatever it moves.
    """
    local = rank_sequences(sizes.dp, job.workload, trains=False)
    leaves = load_framework(job.framework).offloads if trains else engine.offloads
    offloads = (0, 1) if "weights" in leaves or (trains and alike) else (0,)
    draft = draft or TaskDraft()
    sizes_tried = _micro_batches(draft, local, job, engine)
    kept = offloads if draft.offload is None else (int(draft.offload),)
    return tuple(Setting(*size, offload=offload) for size in sizes_tried for offload in kept)


def _micro_batches(
    draft: TaskDraft, local: int, job: Job, engine: EngineSheet
) -> tuple[MicroBatch, ...]:
    """Return the micro-batches that a draft leaves to a rank's sequences."""
    work = job.workload
    if draft.token_budget is not None:
        return (MicroBatch(packed_sequences(draft.token_budget, work), draft.token_budget),)
    if draft.micro_batch is not None:
        return (MicroBatch(draft.micro_batch),)
    if not packs(engine, job):
        return micro_batches(local)
    longest = load_framework(job.framework).whole_budgets
    return micro_batches(local) + token_budgets(local, work, of_the_longest=longest)


def packs(engine: EngineSheet, job: Job) -> bool:
    """Tell whether micro-batches may be packed up to token budgets: the engine packs, and the framework has a key."""
    return engine.padding == "none" and load_framework(job.framework).token_budgets


@lru_cache(maxsize=4096)
def micro_batches(local: int) -> tuple[MicroBatch, ...]:
    """Return the micro-batches to try for a rank's sequences: powers of two, and all at once."""
    return tuple(map(MicroBatch, powers_of_two(local)))


@lru_cache(maxsize=4096)
def token_budgets(
    local: int, work: Workload, *, of_the_longest: bool = False
) -> tuple[MicroBatch, ...]:
    """Return the token budgets to try for a rank's sequences: of the longest, and powers of two beyond it.

    The first that holds all of a rank's sequences is the last.

    Args:
        of_the_longest: Whether a budget is of so many of the longest sequences, powers of two of them.
    """
    longest = work.longest_sequence_tokens
    budgets = [longest if of_the_longest else -(-longest // BUDGET_STEP) * BUDGET_STEP]
    while packed_sequences(budgets[-1], work) < local and budgets[-1] < MOST_BUDGET_TOKENS:
        budgets.append(2 * budgets[-1] if of_the_longest else 1 << budgets[-1].bit_length())
    return tuple(MicroBatch(packed_sequences(each, work), each) for each in budgets)


def columns_for(
    engine: EngineSheet,
    groups: Sequence[tuple[Sizes, tuple[Setting, ...]]],
    ends: tuple[int, int] = (0, 0),
    shard_ranks: int = 0,
) -> LayoutColumns:
    """Return the layouts of all groups of one size, each with its settings, as columns.

    Args:
        ends: Layers of the first and of the last pipeline stage; 0 shares layers out evenly.
        shard_ranks: Ranks that shard states among themselves; 0 is all copies.
    """
    counts = [len(settings) for _, settings in groups]
    cuts = np.array(
        [
            (each.tp, each.pp, each.dp, each.cp, each.ep, each.expert_tp, each.zero)
            for each, _ in groups
        ],
        dtype=np.int64,
    ).reshape(len(groups), 7)
    cuts = np.repeat(cuts, counts, axis=0)
    blocks = [_block(settings) for _, settings in groups]
    rest = np.concatenate(blocks) if blocks else np.zeros((0, 5), dtype=np.int64)
    tp, pp, dp, cp, ep, expert_tp, zero = cuts.T
    first, last = (np.full_like(tp, layers) for layers in ends)
    micro_batch, token_budget, chunks, recompute, offload = rest.T
    return LayoutColumns(
        engine=engine.name,
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        expert_tp=expert_tp,
        first_stage_layers=first,
        last_stage_layers=last,
        zero=zero,
        shard_ranks=np.where((zero > 0) & (dp * cp % max(1, shard_ranks) == 0), shard_ranks, 0),
        micro_batch=micro_batch,
        token_budget=token_budget,
        chunks=chunks,
        recompute=recompute,
        offload=offload,
    )


@lru_cache(maxsize=4096)
def _block(settings: tuple[Setting, ...]) -> "np.typing.NDArray[np.int64]":
    return np.array(settings, dtype=np.int64).reshape(len(settings), 5)


def train_layouts(
    sizes: Sizes, engine: EngineSheet, job: Job, model: ModelArchitecture
) -> Iterator[TaskPlan]:
    """Yield the layouts of a training task with these sizes."""
    columns = columns_for(engine, [(sizes, train_settings(sizes, model, engine, job))])
    yield from map(columns.layout, range(len(columns)))


def infer_layouts(
    sizes: Sizes, engine: EngineSheet, job: Job, *, trains: bool = False
) -> Iterator[TaskPlan]:
    """Yield the layouts of an inference task, whose weights lie as training left them."""
    held = infer_cut(sizes)
    columns = columns_for(engine, [(held, infer_settings(sizes, engine, job, trains=trains))])
    yield from map(columns.layout, range(len(columns)))


def generate_layouts(cuts: PoolCuts) -> Iterator[TaskPlan]:
    """Yield generation layouts: replicas of tp * pp GPUs with their limits of running sequences."""
    engine, job, draft = cuts.engine, cuts.job, cuts.asked.sizes
    if job.workload.longest_sequence_tokens > cuts.model.max_positions:
        return
    for sizes in cuts.splits():
        if not cuts.lists_copies(sizes.dp, trains=False):
            continue
        local = rank_sequences(sizes.dp, job.workload, trains=False)
        pinned = draft.max_running
        for running in _running_limits(local) if pinned is None else (pinned,):
            yield TaskPlan(
                pool="",
                tp=sizes.tp,
                pp=sizes.pp,
                dp=sizes.dp,
                cp=sizes.cp,
                ep=sizes.ep,
                expert_tp=sizes.expert_tp or None,
                engine=engine.name,
                max_running=running,
                memory_fraction=draft.memory_fraction or engine.memory_fraction,
            )


def _running_limits(local: int) -> tuple[int, ...]:
    limits = sorted({local, *(limit for limit in RUNNING_LIMITS if limit < local)})
    return tuple(limit for limit in limits if limit <= max(RUNNING_LIMITS))
