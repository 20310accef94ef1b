"""Layouts that a task can have on a pool: parallel sizes and batch settings, before any cost.

This is the space that is searched. `TaskPlan`s are for tests and single plans; a search takes the same
layouts as columns (`rlplan.simulator.placed`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, prod
from typing import Final, NamedTuple

import numpy as np

from rlplan.dataflow import begun_of, most_called_work
from rlplan.job import Job
from rlplan.layout import layers_of_stages
from rlplan.models import PRECISIONS, ModelArchitecture
from rlplan.parts import num_parameters
from rlplan.plan import SIZES, TaskDraft, TaskPlan
from rlplan.planner.placements.allocations import gpus_of
from rlplan.profiles.catalog import load_device
from rlplan.profiles.sheets import load_framework
from rlplan.rules.batches import batch_sequences, fills_rounds, rank_sequences, shares_batch
from rlplan.rules.engines import engine_runs, largest_size
from rlplan.rules.layouts import (
    FULLY_SHARDED,
    divides_experts,
    divides_heads,
    divides_layers,
    divides_mlp,
    divisors,
    leaves_between,
)
from rlplan.sheets import EngineSheet
from rlplan.simulator.columns import RECOMPUTES, LayoutColumns, Zero
from rlplan.simulator.workload import learnt_work, packed_sequences, samples_in_budget
from rlplan.workload import Workload

# Context parallelism is for sequences that one GPU's memory does not hold: with fewer tokens than these
# on a rank, its exchange of keys and values costs more than data or tensor parallelism's.
# Megatron-Core's documentation advises it from 8K tokens a sequence on.
LEAST_TOKENS_OF_CONTEXT_RANK = 4096

# Stages of which the fullest has an eighth more layers than the mean keep the others waiting for as long:
# a search lists no pipelines that waste more.
LARGEST_STAGE = 9 / 8

# On all GPUs of a device stages may be as many as no power of two, and the fullest has a fifth more than the mean at most: of
# 12 or of 3 x 2^k nodes powers of two leave a factor of three to copies of the model, for which a large one has no memory.
# DeepSeek-V3's 61 layers on 12 nodes of H20 are 12 stages in verl's own settings (docs/perf/dpsk.md), the fullest with six.
LARGEST_STAGE_OF_ALL = 6 / 5

# Of pools of so many whole nodes any number of copies is listed, as where these are the whole cluster: one of 64 GPUs costs a
# search 1.08 times as long so, with eight nodes 1.24 times.
FEW_NODES = 4


@dataclass(frozen=True, slots=True, order=True)
class Sizes:
    """Hold how a model is cut over a pool; tp * pp * dp * cp is the pool's GPUs.

    Attributes:
        zero: The ZeRO stage of what trains; what only infers has 0 or, fully sharded, 3.
        expert_tp: Ranks that each expert's width is cut over; 0 is tp.
    """

    tp: int
    pp: int
    dp: int
    zero: Zero = 0
    cp: int = 1
    ep: int = 1
    expert_tp: int = 0


class PinnedCut(NamedTuple):
    """Hold what of a cut is not the search's to choose.

    Attributes:
        sizes: Those that the user pinned.
        pools: GPUs of pools that the user pinned.
    """

    sizes: TaskDraft = TaskDraft()
    pools: frozenset[int] = frozenset()


NOTHING_ASKED: Final = PinnedCut()


def powers_of_two(largest: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to `largest`, and `largest` itself."""
    values = [1]
    while values[-1] * 2 <= largest:
        values.append(values[-1] * 2)
    return tuple(sorted({*values, largest}))


def nearly_equal(stages: int, layers: int, largest: float = LARGEST_STAGE) -> bool:
    """Tell whether each of so many stages has a layer, and the fullest hardly more than the mean.

    Args:
        largest: Layers of the fullest stage over the mean, at most.
    """
    return stages <= layers and -(-layers // stages) * stages <= largest * layers


def is_power(size: int) -> bool:
    """Tell whether a size is a power of two."""
    return size & (size - 1) == 0


@dataclass(frozen=True, slots=True)
class PoolCuts:
    """List the cuts of a model over a pool, as an engine runs them."""

    model: ModelArchitecture
    engine: EngineSheet
    job: Job
    gpus: int
    gpus_per_node: int
    asked: PinnedCut = NOTHING_ASKED

    def train(self) -> Iterator[Sizes]:
        """Yield the cuts of a trained model of which each copy gets sequences of an update."""
        for sizes in self.splits():
            if self.lists_copies(sizes.dp, trains=True):
                for zero in self._stages(sizes):
                    yield replace(sizes, zero=zero)

    def _stages(self, sizes: Sizes) -> tuple[Zero, ...]:
        """Return the ZeRO stages to list: on one rank, which has nothing to share out, the one that is pinned.

        Weights that are kept in another format than that of products are cast there a few layers at a time, if fully sharded.
        """
        stages, pinned = self.engine.zero_stages, self.asked.sizes.zero
        if sizes.dp * sizes.cp > 1:
            return stages
        if pinned in stages:
            return (pinned,)
        trainers = (self.job.trainers or {}).values()
        casts = self.engine.memory.fp32_weights or any(each.weights for each in trainers)
        return tuple(
            each for each in stages if each == stages[0] or (casts and each == FULLY_SHARDED)
        )

    def infer(self) -> Iterator[Sizes]:
        """Yield the cuts of a model that infers: whole weights on every data-parallel rank, or sharded."""
        for sizes in self.splits():
            if self.lists_copies(sizes.dp, trains=False):
                yield sizes
                asked = self.asked.sizes.zero == FULLY_SHARDED
                shards = sizes.dp * sizes.cp > 1 or asked
                if shards and FULLY_SHARDED in self.engine.zero_stages:
                    yield replace(sizes, zero=FULLY_SHARDED)

    def lists_copies(self, dp: int, *, trains: bool) -> bool:
        """Tell whether a search lists layouts with so many copies of the model.

        Where they do not share out a batch equally it lists powers of two, and on all GPUs of a device, on few whole nodes, or
        on a pool that the user pinned, whatever covers them: a layout for every number of nodes costs a search of
        1,024 GPUs four times as long, and gains 0.7 %.
        """
        if not shares_batch(dp, self.engine, self.job, trains=trains):
            return False
        equal = batch_sequences(self.job.workload, trains=trains) % dp == 0
        pinned = dp == self.asked.sizes.dp
        return equal or is_power(dp) or pinned or self._is_whole or self._is_of_few_nodes

    @property
    def _is_of_few_nodes(self) -> bool:
        """Tell whether the pool is of whole nodes, and of few: so are all GPUs of a smaller cluster, whose plans a larger one has."""
        nodes, rest = divmod(self.gpus, self.gpus_per_node)
        return rest == 0 and nodes <= FEW_NODES

    @property
    def _is_whole(self) -> bool:
        """Tell whether the pool is all GPUs of a device, or one that the user pinned."""
        return self.gpus in self.asked.pools or self.gpus in gpus_of(self.job)

    def splits(self) -> Iterator[Sizes]:
        """Yield all cuts that the model's heads, layers and experts allow."""
        widest = self._widest_experts()
        for tp in self._tp_sizes():
            for cp in self._cp_sizes(self.gpus // tp):
                heads = divides_heads(tp * cp, self.model, replicated=True)
                if cp > 1 and self.engine.context_exchange == "ulysses" and not heads:
                    continue
                # A group that spans nodes is for models that no node holds by itself; stages are for others.
                stages = self._pp_sizes(self.gpus // (tp * cp))
                if tp > self.gpus_per_node and self.asked.sizes.pp is None:
                    stages = (1,)
                for pp in stages:
                    dp = self.gpus // (tp * cp * pp)
                    for ep in self._ep_sizes(dp, widest):
                        yield Sizes(tp, pp, dp, cp=cp, ep=ep)
                    for ep, width in self._expert_sizes(tp, cp * dp, widest):
                        yield Sizes(tp, pp, dp, cp=cp, ep=ep, expert_tp=width)

    def why_none(self, *, trains: bool) -> str:
        """Return in words why no cut covers the pool."""
        asked, model, engine = self.asked.sizes, self.model, self.engine
        names = [name for name in SIZES if getattr(asked, name) is not None]
        pinned = {name: getattr(asked, name) for name in names}
        words = " x ".join(f"{name} {size}" for name, size in pinned.items())
        if self.gpus % prod(pinned.values()):
            return f"{words} = {prod(pinned.values())} does not divide the pool's {self.gpus}"
        kept = [
            cut
            for cut in self.splits()
            if all(getattr(cut, name) == pinned[name] for name in names)
        ]
        if kept:
            least = min(each.dp for each in kept)
            count = batch_sequences(self.job.workload, trains=trains)
            why = (
                f"it has {count} sequences"
                if least > count
                else f"{engine.name} wants equal parts of its {count} sequences"
            )
            return f"dp is at least {least}, and {why}"
        sizes = (
            f"{model.num_heads} heads, {model.num_kv_heads} KV heads and {model.num_layers} layers"
        )
        cut = words or "tp x pp x cp"
        return f"engine {engine.name} cuts {sizes} into no {cut} on {self.gpus} GPUs"

    @property
    def _keeps_rows(self) -> bool:
        """Tell whether the logits of a token lie on one GPU: whole distributions are compared there."""
        return self.job.compares_all and self.engine.role == "train"

    def _tp_sizes(self) -> Iterator[int]:
        """Yield the tensor-parallel sizes that divide heads and MLP, inside a node or over whole ones."""
        if self._keeps_rows:
            yield 1
            return
        sizes = divisors(min(self.gpus, self.gpus_per_node))
        if self.engine.tp_leaves_nodes:
            whole = (size for size in divisors(self.gpus) if size % self.gpus_per_node == 0)
            sizes += tuple(whole)
        replicated = self.engine.replicates_kv_heads
        for size in dict.fromkeys(sizes):
            heads = divides_heads(size, self.model, replicated=replicated)
            if self.gpus % size == 0 and heads and divides_mlp(size, self.model):
                yield size

    def _pp_sizes(self, gpus: int) -> tuple[int, ...]:
        """Return the pipeline sizes that the engine runs and that divide the layers, or powers of two that nearly do.

        On all GPUs of a device, or of a pool that the user pinned, other sizes too. One that the user pinned need do neither. All have
        layers left between a first and a last stage whose layers are pinned.
        """
        layers, uneven = self.model.num_layers, not self.engine.equal_parts
        pinned = self.asked.sizes.pp
        ends = self.asked.sizes.first_stage_layers, self.asked.sizes.last_stage_layers
        if self._keeps_rows:
            return (1,)
        return tuple(
            size
            for size in divisors(gpus)
            if engine_runs(self.engine, "pp", size)
            and leaves_between(size, self.model, *ends)
            and (
                divides_layers(size, self.model)
                or (uneven and is_power(size) and nearly_equal(size, layers))
                or (uneven and not is_power(size) and self._nearly_covers(size))
                or (uneven and size == pinned and size <= layers)
            )
        )

    def _nearly_covers(self, stages: int) -> bool:
        """Tell whether so many stages, no power of two, are tried on the pool."""
        layers = self.model.num_layers
        return self._is_whole and nearly_equal(stages, layers, LARGEST_STAGE_OF_ALL)

    def _cp_sizes(self, gpus: int) -> tuple[int, ...]:
        """Return the context-parallel sizes: powers of two that leave a rank enough tokens, or the pinned one."""
        engine, pinned = self.engine, self.asked.sizes.cp
        if self._keeps_rows:
            return (1,)
        if pinned is not None:
            return (pinned,) if gpus % pinned == 0 and engine_runs(engine, "cp", pinned) else ()
        most = context_ranks(self.job.workload)
        limit = max(1, min(largest_size(engine, "cp") or gpus, most))
        return (1, *(size for size in powers_of_two(limit)[1:] if gpus % size == 0))

    def _ep_sizes(self, dp: int, widest: int) -> tuple[int, ...]:
        """Return the expert-parallel sizes that divide the experts and the data-parallel ranks.

        Args:
            widest: GPUs over which they are spread at most.
        """
        if not self.model.num_experts:
            return (1,)
        return tuple(size for size in divisors(dp) if size <= widest and self._spreads(size))

    def _spreads(self, ep: int) -> bool:
        return divides_experts(ep, self.model) and engine_runs(self.engine, "ep", ep)

    def _widest_experts(self) -> int:
        """Return the GPUs over which a search spreads experts at most, where the user pins no size.

        A node's where a node holds the model with all its states by itself, since exchanges of tokens across
        nodes only cost more then; else all that there are.
        """
        job = self.job
        if self.asked.sizes.ep or not self.model.num_experts:
            return job.gpus
        assert job.precision is not None, "job was not resolved: no precision"
        sizes = PRECISIONS[job.precision]
        each = sizes.weight_bytes
        if self.engine.role == "train":
            each += sizes.gradient_bytes + sizes.optimizer_bytes
        needed = num_parameters(self.model) * each
        holding = [
            group.gpus_per_node
            for group in job.cluster
            if needed <= group.gpus_per_node * load_device(group.gpu).memory_bytes
        ]
        return max(holding) if len(holding) == len(job.cluster) else job.gpus

    def _expert_sizes(self, tp: int, copies: int, widest: int) -> Iterator[tuple[int, int]]:
        """Yield pairs of `ep` and `expert_tp` beside those of experts that are cut as all else.

        A search tries whole experts on the ranks of a tensor-parallel group, where exchanges are near: with
        all other groups that of a mixture of experts takes more than twice as long. Engines that generate share them out over
        several such groups too, each of which attends to sequences of its own (SGLang's --ep-size with --enable-dp-attention,
        vLLM's --enable-expert-parallel). A pinned `expert_tp` is the only one; an engine without whole experts has it as its tp alone.

        Args:
            copies: Tensor-parallel groups.
            widest: GPUs over which experts are spread at most.
        """
        engine, pinned = self.engine, self.asked.sizes.expert_tp
        alone = pinned is None and (tp == 1 or not engine.whole_experts)
        if not self.model.num_experts or alone:
            return
        if pinned is None:
            groups = (1,) if engine.role == "train" else divisors(copies)
            sizes, width = [tp * each for each in groups if each == 1 or tp * each <= widest], 1
        elif tp % pinned or (pinned != tp and not engine.whole_experts):
            return
        else:
            sizes, width = list(divisors(tp * copies // pinned)), pinned
        yield from ((ep, width) for ep in sizes if self._spreads(ep))


def context_ranks(work: Workload) -> int:
    """Return how many ranks may share a sequence at most, each with tokens enough; 0 where it has not for one."""
    return learnt_work(work).longest_sequence_tokens // LEAST_TOKENS_OF_CONTEXT_RANK


def has_positions(work: Workload, model: ModelArchitecture) -> bool:
    """Tell whether a model knows the positions of all tokens that it is to generate."""
    return work.longest_sequence_tokens <= model.max_positions


def infer_cut(sizes: Sizes) -> Sizes:
    """Return the sizes with which a role infers that is cut so: sharded fully or not at all."""
    return replace(sizes, zero=FULLY_SHARDED if sizes.zero == FULLY_SHARDED else 0)


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
    draft = draft or TaskDraft()
    # What a search does not try by itself is listed where it is asked for.
    besides = (mode for mode in engine.recompute_besides if mode == draft.recompute)
    recomputes = tuple(RECOMPUTES.index(mode) for mode in (*engine.recompute_modes, *besides))
    offloads = (0, 1) if "optimizer" in engine.offloads else (0,)
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
    work = learnt_work(job.workload)
    samples = samples_in_budget(engine, work)
    if draft.token_budget is not None:
        return (
            MicroBatch(packed_sequences(draft.token_budget, work, samples), draft.token_budget),
        )
    pinned = draft.micro_batch
    counted = micro_batches(local) if pinned is None else (MicroBatch(pinned),)
    if not packs(engine, job):
        return counted
    longest = load_framework(job.framework).whole_budgets
    # A budget has a number of sequences too, as plans have it: one that is pinned leaves those of as many. It may be more than
    # a rank has, where a framework has one budget for passes over a batch and over an update.
    most = max(local, pinned or 0)
    budgets = token_budgets(most, work, samples, of_the_longest=longest)
    return counted + tuple(each for each in budgets if pinned in {None, each.sequences})


def packs(engine: EngineSheet, job: Job) -> bool:
    """Tell whether micro-batches may be packed up to token budgets: the engine packs, and the framework has a key."""
    return engine.padding == "none" and load_framework(job.framework).token_budgets


@lru_cache(maxsize=4096)
def micro_batches(local: int) -> tuple[MicroBatch, ...]:
    """Return the micro-batches to try for a rank's sequences: powers of two, and all at once."""
    return tuple(map(MicroBatch, powers_of_two(local)))


@lru_cache(maxsize=4096)
def token_budgets(
    local: int, work: Workload, samples: int = 1, *, of_the_longest: bool = False
) -> tuple[MicroBatch, ...]:
    """Return the token budgets to try for a rank's sequences: of the longest, and powers of two beyond it.

    The first that holds all of a rank's sequences is the last.

    Args:
        samples: Of a prompt, whose tokens count once for them.
        of_the_longest: Whether a budget is of so many of the longest sequences, powers of two of them.
    """
    longest = work.longest_sequence_tokens
    budgets = [longest if of_the_longest else -(-longest // BUDGET_STEP) * BUDGET_STEP]
    while packed_sequences(budgets[-1], work, samples) < local and budgets[-1] < MOST_BUDGET_TOKENS:
        budgets.append(2 * budgets[-1] if of_the_longest else 1 << budgets[-1].bit_length())
    return tuple(MicroBatch(packed_sequences(each, work, samples), each) for each in budgets)


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
    """Yield generation layouts: replicas of tp * pp GPUs with their limits of running sequences, up to all that is begun at a time."""
    engine, job, draft = cuts.engine, cuts.job, cuts.asked.sizes
    if not has_positions(job.workload, cuts.model):
        return
    every = begun_of(job)
    for sizes in cuts.splits():
        if not cuts.lists_copies(sizes.dp, trains=False):
            continue
        local = rank_sequences(sizes.dp, most_called_work(job), trains=False)
        begun = rank_sequences(sizes.dp, every, trains=False)
        pinned = draft.max_running
        for running in running_limits(local, begun) if pinned is None else (pinned,):
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


def running_limits(local: int, begun: int) -> tuple[int, ...]:
    """Return the limits of running sequences to try, ascending.

    Args:
        local: Sequences of a batch that a replica has.
        begun: Those that it has at a time where more are begun than a batch has: none runs beyond them.
    """
    most = max(local, begun)
    every = {local, most, *(limit for limit in RUNNING_LIMITS if limit < most)}
    return tuple(sorted(limit for limit in every if limit <= max(RUNNING_LIMITS)))
