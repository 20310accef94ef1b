"""Layouts that a task can have on a pool: parallel sizes and batch settings, before any cost."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import Literal

from rlplan.dataflow import Algorithm
from rlplan.hardware import EngineSheet
from rlplan.job import Job
from rlplan.lengths import longest
from rlplan.model import ModelArchitecture
from rlplan.plan import Recompute, TaskPlan
from simulator.costs.sharding import FULLY_SHARDED

Zero = Literal[0, 1, 2, 3]

# vLLM's default is 256 running sequences (its EngineArgs.max_num_seqs); smaller limits save
# preemptions where the KV cache is small, and larger ones are worth a try where it is not.
RUNNING_LIMITS = (64, 256, 1024)


@dataclass(frozen=True, slots=True, order=True)
class Sizes:
    """Hold how a dense model is cut over a pool; tp * pp * dp is the pool's GPUs.

    Attributes:
        zero: The ZeRO stage of what trains; what only infers has 0 or, fully sharded, 3.
    """

    tp: int
    pp: int
    dp: int
    zero: Zero = 0


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, ascending."""
    small = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    return tuple(sorted({*small, *(number // size for size in small)}))


def powers_of_two(largest: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to `largest`, and `largest` itself."""
    values = [1]
    while values[-1] * 2 <= largest:
        values.append(values[-1] * 2)
    return tuple(sorted({*values, largest}))


def tp_sizes(model: ModelArchitecture, gpus: int, gpus_per_node: int) -> tuple[int, ...]:
    """Return the tensor-parallel sizes that divide the heads and stay inside a node."""
    return tuple(
        size
        for size in divisors(min(gpus, gpus_per_node))
        if gpus % size == 0 and model.num_heads % size == 0 and model.num_kv_heads % size == 0
    )


def pp_sizes(model: ModelArchitecture, engine: EngineSheet, gpus: int) -> tuple[int, ...]:
    """Return the pipeline sizes that divide the layers and that the engine runs."""
    limit = engine.max_pp or gpus
    return tuple(size for size in divisors(gpus) if size <= limit and model.num_layers % size == 0)


def train_sizes(
    model: ModelArchitecture,
    engine: EngineSheet,
    job: Job,
    algorithm: Algorithm,
    gpus: int,
    gpus_per_node: int,
) -> Iterator[Sizes]:
    """Yield the cuts of a trained model whose data-parallel size divides a batch of an update."""
    work = job.workload
    unit = work.prompts if algorithm.groups else work.sequences
    if unit % work.updates:
        return
    for tp, pp, dp in _splits(model, engine, gpus, gpus_per_node):
        if unit // work.updates % dp == 0:
            for zero in engine.zero_stages if dp > 1 else engine.zero_stages[:1]:
                yield Sizes(tp, pp, dp, zero)


def infer_sizes(
    model: ModelArchitecture, engine: EngineSheet, job: Job, gpus: int, gpus_per_node: int
) -> Iterator[Sizes]:
    """Yield the cuts of a model that infers: whole weights on every data-parallel rank, or sharded."""
    for tp, pp, dp in _splits(model, engine, gpus, gpus_per_node):
        if infers_on(job, dp):
            yield Sizes(tp, pp, dp)
            if dp > 1 and FULLY_SHARDED in engine.zero_stages:
                yield Sizes(tp, pp, dp, FULLY_SHARDED)


def infers_on(job: Job, dp: int) -> bool:
    """Tell whether the prompts of an iteration divide over so many data-parallel ranks."""
    return job.workload.prompts % dp == 0


def _splits(
    model: ModelArchitecture, engine: EngineSheet, gpus: int, gpus_per_node: int
) -> Iterator[tuple[int, int, int]]:
    for tp in tp_sizes(model, gpus, gpus_per_node):
        for pp in pp_sizes(model, engine, gpus // tp):
            yield tp, pp, gpus // (tp * pp)


def train_layouts(sizes: Sizes, engine: EngineSheet, job: Job) -> Iterator[TaskPlan]:
    """Yield micro-batches and recomputation modes for a training layout."""
    local = job.workload.sequences // job.workload.updates // sizes.dp
    recomputes: tuple[Recompute, ...] = engine.recompute_modes
    for micro_batch in _micro_batches(local):
        for recompute in recomputes:
            yield TaskPlan(
                pool="",
                tp=sizes.tp,
                pp=sizes.pp,
                dp=sizes.dp,
                engine=engine.name,
                micro_batch=micro_batch,
                recompute=recompute,
                zero=sizes.zero,
            )


def infer_layouts(sizes: Sizes, engine: EngineSheet, job: Job) -> Iterator[TaskPlan]:
    """Yield micro-batches for an inference layout, whose weights lie as training left them."""
    local = job.workload.sequences // sizes.dp
    for micro_batch in _micro_batches(local):
        yield TaskPlan(
            pool="",
            tp=sizes.tp,
            pp=sizes.pp,
            dp=sizes.dp,
            engine=engine.name,
            micro_batch=micro_batch,
            zero=FULLY_SHARDED if sizes.zero == FULLY_SHARDED else 0,
        )


def _micro_batches(local: int) -> tuple[int, ...]:
    return tuple(size for size in powers_of_two(local) if local % size == 0)


def generate_layouts(
    model: ModelArchitecture, engine: EngineSheet, job: Job, gpus: int, gpus_per_node: int
) -> Iterator[TaskPlan]:
    """Yield generation layouts: replicas of tp * pp GPUs with their limits of running sequences."""
    if (
        longest(job.workload.prompt_tokens) + longest(job.workload.response_tokens)
        > model.max_positions
    ):
        return
    for tp, pp, dp in _splits(model, engine, gpus, gpus_per_node):
        if not infers_on(job, dp):
            continue
        local = job.workload.sequences // dp
        for running in sorted({local, *(limit for limit in RUNNING_LIMITS if limit < local)}):
            if running <= max(RUNNING_LIMITS):
                yield TaskPlan(
                    pool="",
                    tp=tp,
                    pp=pp,
                    dp=dp,
                    engine=engine.name,
                    max_running=running,
                    memory_fraction=engine.memory_fraction,
                )
