"""Generate tasks: the slowest replica's prefills and decode steps under its KV budget."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from profiles.facts import Facts
from rlplan.dataflow import Task
from rlplan.estimate import Estimate
from rlplan.hardware import EngineSheet
from rlplan.job import Job
from rlplan.model import ModelArchitecture
from rlplan.plan import TaskPlan
from rlplan.precision import Precision
from simulator.costs.pricing import precision_of
from simulator.costs.taskcost import TaskCost, cost_of
from simulator.costs.traffic import call_seconds, data_bytes
from simulator.generation.decoding import ReplicaSteps, StepClock, measured_steps, operator_steps
from simulator.generation.engine_clock import EngineClock
from simulator.generation.length_spread import length_spread
from simulator.generation.playing import generate
from simulator.generation.replica import Batching, Chunks, Replica, blocks_of
from simulator.generation.shares import Share, longest_shares, waits
from simulator.generation.stepping import EngineSteps, cache_value_bytes, engine_steps
from simulator.model.weights import cache_bytes_per_token
from simulator.site import Site
from simulator.workload.sequences import local_sequences, statistics_of

REMEMBERED_REPLICAS = 4096

# Batching whose steps are priced in parts; waves are priced pass by pass.
CONTINUOUS = ("continuous", "mixed", "calls")

Steps = ReplicaSteps | EngineSteps


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
    steps, budget = _replica(task, layout, site, job, facts, kv_bytes)
    statistics = statistics_of(job.workload)
    wave = budget.max_running if waits(budget.batching) else 0
    shares = longest_shares(statistics, layout.dp, job.workload.samples_per_prompt, wave)
    slowest = max(
        (generated(steps, budget, share) for share in shares),
        key=lambda outcome: outcome[0].seconds + outcome[1].seconds,
    )
    num_bytes = data_bytes(task.inputs, job.workload) // layout.dp
    call = call_seconds(facts.device(site.device), model, precision, num_bytes)
    return cost_of({"prefill": slowest[0], "decode": slowest[1], "call overhead": call})


def with_length_spread(
    cost: TaskCost,
    task: Task,
    layout: TaskPlan,
    site: Site,
    job: Job,
    facts: Facts,
    kv_bytes: float | None = None,
) -> TaskCost:
    """Return a generate task's cost whose spread has the luck of its lengths in it too.

    That luck has nothing to do with how well operators are known: their variances add up.

    Args:
        cost: What `generate_cost` said of the task.
    """
    steps, budget = _replica(task, layout, site, job, facts, kv_bytes)
    share = length_spread(
        clock_of(steps),
        budget.batching,
        budget.max_running,
        budget.kv_blocks * budget.block_tokens,
        statistics_of(job.workload),
        layout.dp,
    )
    known = cost.total
    wider = math.hypot(known.spread_seconds, share * known.seconds) - known.spread_seconds
    return TaskCost(
        tuple(
            (name, replace(part, spread_seconds=part.spread_seconds + wider))
            if name == "decode"
            else (name, part)
            for name, part in cost.parts
        )
    )


def _replica(
    task: Task, layout: TaskPlan, site: Site, job: Job, facts: Facts, kv_bytes: float | None
) -> tuple[Steps, "Budget"]:
    """Return what the steps of a task's replicas cost, and how they batch."""
    model, engine = job.architecture(task.role), facts.engine(layout.engine)
    running = min(layout.max_running, local_sequences(job, layout.dp))
    blocks = _kv_blocks(model, layout, job, engine, kv_bytes)
    samples = job.workload.samples_per_prompt
    budget = budget_of(engine, running, blocks, samples_per_prompt=samples)
    return steps_of(model, layout, site, precision_of(job), facts), budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Hold how a replica batches, and what its KV cache holds (see `simulator.generation.replica.Replica`)."""

    batching: Batching
    max_running: int
    kv_blocks: int
    block_tokens: int
    max_batched_tokens: int
    chunked_prefill: bool = False
    reserves_whole: bool = False
    prompt_samples: int = 1


def budget_of(
    engine: EngineSheet,
    max_running: int,
    kv_blocks: int,
    *,
    samples_per_prompt: int = 1,
    max_batched_tokens: int = 0,
) -> Budget:
    """Return how an engine batches.

    Args:
        samples_per_prompt: Sequences in a row that have one prompt.
        max_batched_tokens: Most tokens of a pass; 0 is the engine's usual number.
    """
    batched = max_batched_tokens or engine.max_batched_tokens
    if engine.batching == "mixed":
        max_running = min(max_running, batched)  # every running sequence needs a token of the step
    return Budget(
        batching=engine.batching,
        max_running=max_running,
        kv_blocks=kv_blocks,
        block_tokens=engine.kv_block_tokens,
        max_batched_tokens=batched,
        chunked_prefill=engine.chunked_prefill,
        reserves_whole=engine.reserves_whole,
        prompt_samples=samples_per_prompt if engine.shares_prompts else 1,
    )


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
    value_bytes = cache_value_bytes(engine, precision_of(job))
    token_bytes = cache_bytes_per_token(model, layout.tp, layout.pp, value_bytes)
    return min(useful, int(kv_bytes // (engine.kv_block_tokens * token_bytes)))


def _bare(layout: TaskPlan) -> TaskPlan:
    """Return what decides a replica's steps, so that layouts share what is remembered of them."""
    return TaskPlan(
        pool="", tp=layout.tp, pp=layout.pp, cp=layout.cp, ep=layout.ep, engine=layout.engine
    )


class PassClock:
    """Give seconds of whole passes for one generation, and remember how well they are known."""

    def __init__(self, steps: ReplicaSteps) -> None:
        self.prefill, self.decode = StepClock(steps.prefill), StepClock(steps.decode)
        self.prefill_run, self.decode_run = self.prefill.run, self.decode.run

    def mixed(self, running: int, cached: float, chunks: Chunks) -> float:
        """Return seconds of a step that decodes and prefills: both passes, one after the other."""
        decoding = self.decode(running, cached) if running else 0.0
        return decoding + self.prefill(chunks.parts, chunks.tokens)

    def estimates(self, prefill_seconds: float, decode_seconds: float) -> tuple[Estimate, Estimate]:
        """Return these seconds as estimates."""
        return self.prefill.estimate(prefill_seconds), self.decode.estimate(decode_seconds)


def steps_of(
    model: ModelArchitecture, layout: TaskPlan, site: Site, precision: Precision, facts: Facts
) -> Steps:
    """Return what the steps of a replica cost: measured passes where they are known."""
    bare = _bare(layout)
    if facts.device(site.device).profile is not None:
        bare = replace(bare, dp=layout.dp)  # measured passes know how many copies work at once
    return _steps(facts, model, bare, site, precision)


@lru_cache(maxsize=REMEMBERED_REPLICAS)
def _steps(
    facts: Facts, model: ModelArchitecture, layout: TaskPlan, site: Site, precision: Precision
) -> Steps:
    measured = measured_steps(model, layout, site, precision, facts)
    if measured is not None:
        return measured
    if facts.engine(layout.engine).batching in CONTINUOUS:
        return engine_steps(model, layout, site, precision, facts)
    return operator_steps(model, layout, site, precision, facts)


def clock_of(steps: Steps) -> EngineClock | PassClock:
    """Return a clock for one generation."""
    return EngineClock(steps) if isinstance(steps, EngineSteps) else PassClock(steps)


def replica_of(clock: EngineClock | PassClock, budget: Budget) -> Replica:
    """Return a replica that batches by a budget and takes its steps' time from a clock."""
    return Replica(
        batching=budget.batching,
        max_running=budget.max_running,
        kv_blocks=budget.kv_blocks,
        block_tokens=budget.block_tokens,
        max_batched_tokens=budget.max_batched_tokens,
        chunked_prefill=budget.chunked_prefill,
        reserves_whole=budget.reserves_whole,
        prompt_samples=budget.prompt_samples,
        prefill_seconds=clock.prefill,
        decode_seconds=clock.decode,
        mixed_seconds=clock.mixed,
        decode_run=clock.decode_run,
        prefill_run=clock.prefill_run,
    )


@lru_cache(maxsize=REMEMBERED_REPLICAS)
def generated(steps: Steps, budget: Budget, share: Share) -> tuple[Estimate, Estimate]:
    """Return what a replica spends on prefill and on decode steps, in seconds.

    Args:
        share: Prompt tokens and response tokens by sequence, in the order of their admission.
    """
    clock = clock_of(steps)
    outcome = generate(replica_of(clock, budget), *share)
    return clock.estimates(outcome.prefill_seconds, outcome.decode_seconds)
