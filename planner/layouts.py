"""Layouts that a task can have on a pool: parallel sizes and batch settings, before any cost."""

from collections.abc import Iterator
from dataclasses import dataclass

from rlplan.dataflow import Algorithm
from rlplan.hardware import EngineSheet
from rlplan.job import Job
from rlplan.lengths import longest
from rlplan.model import ModelArchitecture
from rlplan.plan import Recompute, TaskPlan

# vLLM's default is 256 running sequences (its EngineArgs.max_num_seqs); smaller limits save
# preemptions where the KV cache is small, and larger ones are worth a try where it is not.
RUNNING_LIMITS = (64, 256, 1024)


@dataclass(frozen=True, slots=True, order=True)
class Sizes:
    """Hold parallel sizes of a dense layout; tp * pp * dp is the pool's GPUs."""

    tp: int
    pp: int
    dp: int


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, ascending."""
    return tuple(size for size in range(1, number + 1) if number % size == 0)


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
    """Yield the layouts of a trained (and inferring) model whose data-parallel size divides a batch."""
    unit = job.workload.prompts if algorithm.groups else job.workload.sequences
    for tp in tp_sizes(model, gpus, gpus_per_node):
        for pp in pp_sizes(model, engine, gpus // tp):
            dp = gpus // (tp * pp)
            if unit % job.workload.updates == 0 and unit // job.workload.updates % dp == 0:
                yield Sizes(tp, pp, dp)


def infer_sizes(
    model: ModelArchitecture, engine: EngineSheet, job: Job, gpus: int, gpus_per_node: int
) -> Iterator[Sizes]:
    """Yield the layouts of a model that only infers."""
    for tp in tp_sizes(model, gpus, gpus_per_node):
        for pp in pp_sizes(model, engine, gpus // tp):
            dp = gpus // (tp * pp)
            if job.workload.prompts % dp == 0:
                yield Sizes(tp, pp, dp)


def train_layouts(sizes: Sizes, engine: EngineSheet, job: Job) -> Iterator[TaskPlan]:
    """Yield micro-batches, recomputation and ZeRO stages for a training layout."""
    local = job.workload.sequences // job.workload.updates // sizes.dp
    stages = engine.zero_stages if sizes.dp > 1 else (engine.zero_stages[0],)
    recomputes: tuple[Recompute, ...] = engine.recompute_modes
    for micro_batch in powers_of_two(local):
        if local % micro_batch:
            continue
        for recompute in recomputes:
            for zero in stages:
                yield TaskPlan(
                    pool="",
                    tp=sizes.tp,
                    pp=sizes.pp,
                    dp=sizes.dp,
                    engine=engine.name,
                    micro_batch=micro_batch,
                    recompute=recompute,
                    zero=zero,
                )


def infer_layouts(sizes: Sizes, engine: EngineSheet, job: Job) -> Iterator[TaskPlan]:
    """Yield micro-batches for an inference layout."""
    local = job.workload.sequences // sizes.dp
    for micro_batch in powers_of_two(local):
        if local % micro_batch == 0:
            yield TaskPlan(
                pool="",
                tp=sizes.tp,
                pp=sizes.pp,
                dp=sizes.dp,
                engine=engine.name,
                micro_batch=micro_batch,
            )


def generate_layouts(
    model: ModelArchitecture, engine: EngineSheet, job: Job, gpus: int, gpus_per_node: int
) -> Iterator[TaskPlan]:
    """Yield generation layouts: replicas of tp * pp GPUs with their limits of running sequences."""
    if (
        longest(job.workload.prompt_tokens) + longest(job.workload.response_tokens)
        > model.max_positions
    ):
        return
    for tp in tp_sizes(model, gpus, gpus_per_node):
        for pp in pp_sizes(model, engine, gpus // tp):
            dp = gpus // (tp * pp)
            if job.workload.prompts % dp:
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
