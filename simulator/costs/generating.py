"""Generate tasks: the slowest replica's prefills and decode steps under its KV budget."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from profiles.facts import Facts
from rlplan.dataflow import Task
from rlplan.estimate import Estimate
from rlplan.hardware import EngineSheet
from rlplan.job import Job
from rlplan.model import ModelArchitecture
from rlplan.plan import TaskPlan
from rlplan.precision import PRECISIONS, Precision
from simulator.costs.decoding import ReplicaSteps, StepClock, measured_steps, operator_steps
from simulator.costs.pricing import precision_of
from simulator.costs.sequences import (
    PROMPT_SEED,
    RESPONSE_SEED,
    LengthStatistics,
    drawn,
    local_sequences,
    statistics_of,
)
from simulator.costs.taskcost import TaskCost, cost_of
from simulator.costs.traffic import call_seconds, data_bytes
from simulator.costs.weights import cache_bytes_per_token
from simulator.generation import generate
from simulator.replica import Batching, Replica, blocks_of
from simulator.site import Site

REMEMBERED_REPLICAS = 4096

Share = tuple[tuple[int, ...], tuple[int, ...]]


def generate_cost(
    task: Task,
    layout: TaskPlan,
    site: Site,
    job: Job,
    facts: Facts,
    kv_bytes: float | None = None,
) -> TaskCost:
    """Return what a generate task costs: the time of the replica that ends last.

    Args:
        kv_bytes: Bytes free for the KV cache on each GPU; None is as many as it can use.
    """
    model, precision = job.architecture(task.role), precision_of(job)
    engine = facts.engine(layout.engine)
    budget = Budget(
        batching=engine.batching,
        max_running=min(layout.max_running, local_sequences(job, layout.dp)),
        kv_blocks=_kv_blocks(model, layout, job, engine, kv_bytes),
        block_tokens=engine.kv_block_tokens,
        max_batched_tokens=engine.max_batched_tokens,
    )
    steps = _steps(facts, model, _bare(layout), site, precision)
    statistics = statistics_of(job.workload)
    shares = _longest_shares(statistics, layout.dp, job.workload.samples_per_prompt)
    slowest = max(
        (_generated(steps, budget, share) for share in shares),
        key=lambda outcome: outcome[0].seconds + outcome[1].seconds,
    )
    num_bytes = data_bytes(task.inputs, job.workload) // layout.dp
    call = call_seconds(facts.device(site.device), model, precision, num_bytes)
    return cost_of({"prefill": slowest[0], "decode": slowest[1], "call overhead": call})


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Hold how a replica batches, and what its KV cache holds (see `simulator.replica`)."""

    batching: Batching
    max_running: int
    kv_blocks: int
    block_tokens: int
    max_batched_tokens: int


def _kv_blocks(
    model: ModelArchitecture,
    layout: TaskPlan,
    job: Job,
    engine: EngineSheet,
    kv_bytes: float | None,
) -> int:
    """Return the blocks of a replica's KV cache, at most those that its sequences can fill."""
    running = min(layout.max_running, local_sequences(job, layout.dp))
    longest = statistics_of(job.workload).longest_tokens
    useful = running * blocks_of(longest, engine.kv_block_tokens)
    if kv_bytes is None:
        return useful
    value_bytes = PRECISIONS[precision_of(job)].weight_bytes
    token_bytes = cache_bytes_per_token(model, layout.tp, layout.pp, value_bytes)
    return min(useful, int(kv_bytes // (engine.kv_block_tokens * token_bytes)))


def _bare(layout: TaskPlan) -> TaskPlan:
    """Return what decides a replica's steps, so that layouts share what is remembered of them."""
    return TaskPlan(
        pool="", tp=layout.tp, pp=layout.pp, cp=layout.cp, ep=layout.ep, engine=layout.engine
    )


@lru_cache(maxsize=REMEMBERED_REPLICAS)
def _steps(
    facts: Facts, model: ModelArchitecture, layout: TaskPlan, site: Site, precision: Precision
) -> ReplicaSteps:
    measured = measured_steps(model, layout, site, precision, facts)
    return measured or operator_steps(model, layout, site, precision, facts)


@lru_cache(maxsize=REMEMBERED_REPLICAS)
def _generated(steps: ReplicaSteps, budget: Budget, share: Share) -> tuple[Estimate, Estimate]:
    """Return what a replica spends on prefill and on decode steps."""
    prefill, decode = StepClock(steps.prefill), StepClock(steps.decode)
    replica = Replica(
        batching=budget.batching,
        max_running=budget.max_running,
        kv_blocks=budget.kv_blocks,
        block_tokens=budget.block_tokens,
        max_batched_tokens=budget.max_batched_tokens,
        prefill_seconds=prefill,
        decode_seconds=decode,
    )
    outcome = generate(replica, *share)
    return prefill.estimate(outcome.prefill_seconds), decode.estimate(outcome.decode_seconds)


@lru_cache(maxsize=REMEMBERED_REPLICAS)
def _longest_shares(statistics: LengthStatistics, replicas: int, block: int) -> tuple[Share, ...]:
    """Return the shares of the replicas that may end last: most tokens, and the longest response.

    The same lengths are drawn for every layout, and dealt out in runs, whole blocks of samples of
    one prompt, as the executor deals them.
    """
    workload = statistics.workload
    each = drawn(workload.prompt_tokens, workload.prompts, seed=PROMPT_SEED)
    prompts = np.repeat(each, workload.samples_per_prompt).astype(np.int64)
    responses = drawn(workload.response_tokens, workload.sequences, seed=RESPONSE_SEED).astype(
        np.int64
    )
    blocks = np.arange(workload.sequences).reshape(-1, block)
    dealt = [rows.ravel() for rows in np.array_split(blocks, replicas) if rows.size]
    fullest = max(dealt, key=lambda rows: int(prompts[rows].sum() + responses[rows].sum()))
    longest = max(dealt, key=lambda rows: int(responses[rows].max()))
    chosen = [fullest] if np.array_equal(fullest, longest) else [fullest, longest]
    return tuple(
        (tuple(prompts[rows].tolist()), tuple(responses[rows].tolist())) for rows in chosen
    )
