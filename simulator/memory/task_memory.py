"""The bytes that one task puts on a GPU, by term.

Resident terms stay while other tasks of the pool run; transient ones live as long as their task.
"""

from dataclasses import dataclass
from functools import partial

from profiles.facts import Facts
from rlplan.dataflow import Task
from rlplan.files.frozen import FrozenDict
from rlplan.hardware import EngineSheet
from rlplan.job import Job
from rlplan.model import ModelArchitecture
from rlplan.plan import TaskPlan
from rlplan.precision import PRECISIONS
from simulator.costs.pipeline import layers_of_stages
from simulator.costs.pricing import precision_of, shard_of
from simulator.costs.sharding import FULLY_SHARDED
from simulator.generation.waves import most_prompts
from simulator.model.activations import layer_activation_bytes, logits_bytes
from simulator.model.weights import (
    cache_bytes_per_token,
    largest_shard,
    layer_parameters,
    shard_parameters,
)
from simulator.site import Site
from simulator.workload.sequences import local_sequences, statistics_of
from simulator.workload.shared_prompts import least_shared_tokens, samples_sharing

# Share of activations and logits that is lost between blocks of PyTorch's caching allocator: 15 %
# on average and up to 33 % were measured in training (Guo et al. 2024, GMLake, arXiv:2401.08156,
# abstract); expandable segments, the usual setting since, give back part of it.
FRAGMENTATION_FRACTION = 0.10

# Layers whose weights ZeRO stage 3 holds whole at a time: the running one and the prefetched one.
GATHERED_LAYERS = 2

GRADIENTS_SHARDED = 2  # the ZeRO stage from which on gradients are kept sharded

ACTIVATIONS = "activations"
CONTEXT = "context and libraries"
FRAGMENTATION = "fragmentation margin"
KV_CACHE = "KV cache"
LOGITS = "logits"

Terms = dict[str, int]
EMPTY: FrozenDict[str, int] = FrozenDict()


@dataclass(frozen=True, slots=True)
class TaskMemory:
    """Hold the bytes that a task puts on its fullest GPU, by term."""

    resident: FrozenDict[str, int] = EMPTY
    transient: FrozenDict[str, int] = EMPTY

    @property
    def resident_bytes(self) -> int:
        """Return the bytes that stay while other tasks run."""
        return sum(self.resident.values())

    @property
    def transient_bytes(self) -> int:
        """Return the bytes that live as long as the task."""
        return sum(self.transient.values())


def task_memory(task: Task, layout: TaskPlan, site: Site, job: Job, facts: Facts) -> TaskMemory:
    """Return the bytes that a task puts on each GPU, by term, on its fullest pipeline stage.

    Tasks of one role share resident terms of one name. A generate task's transients hold a whole
    copy of its weights and one longest sequence in its KV cache, the least that it can run with;
    `simulator.memory.pool_memory` knows what it shares with the training task and fills the cache up.
    """
    if task.kind == "rule":
        return TaskMemory()
    if task.kind == "generate":
        terms = {
            weights_term(task.role, generating=True): generation_weight_bytes(
                task.role, layout, job, facts
            ),
            KV_CACHE: least_kv_bytes(task.role, layout, job, facts),
            **generation_terms(task.role, layout, site, job, facts),
        }
        return TaskMemory(EMPTY, FrozenDict(terms))
    stages = dict.fromkeys((0, layout.pp - 1))
    memories = [_stage_memory(task, layout, site, job, facts, stage) for stage in stages]
    return max(memories, key=lambda memory: memory.resident_bytes + memory.transient_bytes)


def weights_term(role: str, *, generating: bool = False) -> str:
    """Return the name of the term that holds a role's weights."""
    return f"{role} weights for generation" if generating else f"{role} weights"


def _stage_memory(
    task: Task, layout: TaskPlan, site: Site, job: Job, facts: Facts, stage: int
) -> TaskMemory:
    """Return what one GPU of a pipeline stage of an infer or train task holds."""
    model, engine = job.architecture(task.role), facts.engine(layout.engine)
    sizes = PRECISIONS[precision_of(job)]
    parameters = shard_parameters(model, task.head, layout.tp, layout.pp, stage, layout.ep)
    ranks = layout.dp * layout.cp
    resident: Terms = {}
    transient: Terms = {}
    weights_stay = task.kind == "train" or not layout.offload
    held = -(-parameters // ranks) if layout.zero == FULLY_SHARDED else parameters
    (resident if weights_stay else transient)[weights_term(task.role)] = held * sizes.weight_bytes
    if layout.zero == FULLY_SHARDED and ranks > 1:
        gathered = GATHERED_LAYERS * layer_parameters(model, layout.tp, layout.ep)
        transient["gathered weights"] = gathered * sizes.weight_bytes
    if task.kind == "train":
        shared = -(-parameters // ranks) if layout.zero >= GRADIENTS_SHARDED else parameters
        gradients = resident if engine.keeps_gradients else transient
        gradients[f"{task.role} gradients"] = shared * sizes.gradient_bytes
        stepped = -(-parameters // ranks) if layout.zero else parameters
        if layout.zero == GRADIENTS_SHARDED and ranks > 1 and not sizes.master_bytes:
            resident[f"{task.role} weights that are stepped"] = shared * sizes.weight_bytes
        states = transient if layout.offload else resident
        states[f"{task.role} optimizer states"] = stepped * sizes.optimizer_bytes
    transient |= _working_terms(task, layout, job, engine, stage)
    transient[CONTEXT] = facts.device(site.device).context_bytes
    return TaskMemory(FrozenDict(resident), FrozenDict(transient))


def _working_terms(
    task: Task, layout: TaskPlan, job: Job, engine: EngineSheet, stage: int
) -> Terms:
    """Return activations and logits of the longest micro-batches that can occur.

    A stage of a 1F1B pipeline holds as many micro-batches as stages follow it, itself included
    (Narayanan et al. 2021, section 2.2.1). On top comes one layer's whole set: what is computed
    again, or the gradients of what was kept. A forward pass keeps nothing but that.
    """
    model, precision = job.architecture(task.role), precision_of(job)
    shard = shard_of(layout, precision, engine)
    trains = task.kind == "train"
    updates = job.workload.updates if trains else None
    local = local_sequences(job, layout.dp, updates=updates)
    sequences = min(layout.micro_batch, local)
    tokens = statistics_of(job.workload).longest_tokens
    shared = least_shared_tokens(engine, job.workload, sequences)
    held = partial(
        layer_activation_bytes,
        model,
        shard,
        sequences,
        tokens,
        fused_attention=engine.fused_attention,
        shared_tokens=shared,
    )
    whole, kept = held("none"), 0
    if trains:
        kept = held(layout.recompute)
        num_passes = -(-local // layout.micro_batch) * layout.chunks
        in_flight = min(num_passes, passes_in_flight(layout.pp, stage, layout.chunks))
        layers = layers_of_stages(model.num_layers, layout.pp)[stage]
        kept = kept * in_flight * layers // layout.chunks
    terms = {ACTIVATIONS: kept + whole}
    if stage == layout.pp - 1 and task.head == "lm":
        width = -(-(sequences * tokens - shared) // layout.cp)
        terms[LOGITS] = logits_bytes(model, layout.tp, width, shard.value_bytes, backward=trains)
    return _with_margin(terms)


def passes_in_flight(stages: int, stage: int, chunks: int) -> int:
    """Return the passes through one chunk of layers whose activations a stage holds at most.

    In a plain 1F1B schedule as many as stages follow it, itself included. An interleaved one warms
    up with 2 (p - s - 1) + (v - 1) p passes and runs one more, which on the first stage is
    1 + (p - 1) / (p v) of a plain one's activations (Korthikanti et al. 2022, section 4.2.3).
    """
    if chunks == 1:
        return stages - stage
    return 2 * (stages - stage - 1) + (chunks - 1) * stages + 1


def _with_margin(terms: Terms) -> Terms:
    return terms | {FRAGMENTATION: round(FRAGMENTATION_FRACTION * sum(terms.values()))}


def generation_terms(role: str, layout: TaskPlan, site: Site, job: Job, facts: Facts) -> Terms:
    """Return what a generation engine holds beside its weights and its KV cache.

    One layer's activations of its largest prefill pass, which has each prompt once where samples share
    it, and the logits of all running sequences.
    """
    model, engine = job.architecture(role), facts.engine(layout.engine)
    shard = shard_of(layout, precision_of(job), engine)
    statistics = statistics_of(job.workload)
    running = min(layout.max_running, local_sequences(job, layout.dp))
    prompt = statistics.longest_prompt_tokens
    if engine.batching == "none":
        prompt = statistics.longest_tokens  # its last pass is its longest
    prompts = most_prompts(running, samples_sharing(engine, job.workload))
    together = max(1, min(prompts, engine.max_batched_tokens // prompt))
    activations = layer_activation_bytes(
        model, shard, together, prompt, "none", fused_attention=engine.fused_attention
    )
    logits = logits_bytes(model, layout.tp, running, shard.value_bytes, backward=False)
    context = facts.device(site.device).context_bytes
    return _with_margin({ACTIVATIONS: activations, LOGITS: logits}) | {CONTEXT: context}


def generation_weight_bytes(role: str, layout: TaskPlan, job: Job, facts: Facts) -> int:
    """Return the weight bytes of one GPU of a generation layout.

    An engine that gathers layer by layer holds a few at a time, beside the shard of training.
    """
    model: ModelArchitecture = job.architecture(role)
    parameters = largest_shard(model, "lm", layout.tp, layout.pp, layout.ep)
    if facts.engine(layout.engine).gathers_weights:
        parameters = GATHERED_LAYERS * layer_parameters(model, layout.tp, layout.ep)
    return parameters * PRECISIONS[precision_of(job)].weight_bytes


def least_kv_bytes(role: str, layout: TaskPlan, job: Job, facts: Facts) -> int:
    """Return the KV-cache bytes of one longest sequence on one GPU: with less nothing runs."""
    return _kv_bytes_of(1, role, layout, job, facts)


def useful_kv_bytes(role: str, layout: TaskPlan, job: Job, facts: Facts) -> int:
    """Return the KV-cache bytes beyond which all running sequences fit at their longest."""
    running = min(layout.max_running, local_sequences(job, layout.dp))
    return _kv_bytes_of(running, role, layout, job, facts)


def _kv_bytes_of(sequences: int, role: str, layout: TaskPlan, job: Job, facts: Facts) -> int:
    engine = facts.engine(layout.engine)
    if engine.batching == "none":
        return 0  # it keeps no cache: every step computes the whole sequences again
    block_tokens = engine.kv_block_tokens
    tokens = -(-statistics_of(job.workload).longest_tokens // block_tokens) * block_tokens
    value_bytes = engine.cache_value_bytes or PRECISIONS[precision_of(job)].weight_bytes
    model = job.architecture(role)
    return sequences * tokens * cache_bytes_per_token(model, layout.tp, layout.pp, value_bytes)
