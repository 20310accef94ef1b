"""Generate tasks: the slowest replica's prefills and decode steps under its KV budget."""

from functools import lru_cache

import numpy as np

from profiles.facts import Facts
from rlplan.dataflow import Task
from rlplan.job import Job
from rlplan.model import ModelArchitecture
from rlplan.plan import TaskPlan
from rlplan.precision import PRECISIONS, Precision
from simulator.costs.decoding import ReplicaSteps, measured_steps, operator_steps
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
from simulator.replica import Generated, Replica, blocks_of
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
    steps = _steps(facts, model, _bare(layout), site, precision)
    shares = _longest_shares(statistics_of(job.workload), layout.dp, _block(job))
    replica = replica_of(model, layout, job, facts, steps, kv_bytes)
    slowest = max(
        (_generated(replica, share) for share in shares), key=lambda outcome: outcome.seconds
    )
    num_bytes = data_bytes(task.inputs, job.workload)
    device = facts.device(site.device)
    return cost_of(
        {
            "prefill": steps.prefill.estimate(slowest.prefill_seconds),
            "decode": steps.decode.estimate(slowest.decode_seconds),
            "call overhead": call_seconds(device, model, precision, num_bytes),
        }
    )


def replica_of(
    model: ModelArchitecture,
    layout: TaskPlan,
    job: Job,
    facts: Facts,
    steps: ReplicaSteps,
    kv_bytes: float | None,
) -> Replica:
    """Return one replica of a generate task with its KV budget in blocks.

    A budget beyond what all its sequences can fill makes no difference, and is cut to that.
    """
    engine = facts.engine(layout.engine)
    value_bytes = PRECISIONS[precision_of(job)].weight_bytes
    block_bytes = engine.kv_block_tokens * cache_bytes_per_token(
        model, layout.tp, layout.pp, value_bytes
    )
    running = min(layout.max_running, local_sequences(job, layout.dp))
    longest = statistics_of(job.workload).longest_tokens
    useful = running * blocks_of(longest, engine.kv_block_tokens)
    blocks = useful if kv_bytes is None else min(useful, int(kv_bytes // block_bytes))
    return Replica(
        batching=engine.batching,
        max_running=running,
        kv_blocks=blocks,
        block_tokens=engine.kv_block_tokens,
        max_batched_tokens=engine.max_batched_tokens,
        prefill_seconds=steps.prefill,
        decode_seconds=steps.decode,
    )


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
def _generated(replica: Replica, share: Share) -> Generated:
    prompts, responses = share
    return generate(replica, prompts, responses)


def _block(job: Job) -> int:
    return local_sequences(job, job.workload.sequences)


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
