"""What lies in the memory of a pool's fullest GPU, and when it is fullest.

The peak of a colocated pool is all residents plus the largest transients. Every task is taken on
its own fullest pipeline stage, which for tasks of different pipelines need not be the same GPU: an
upper bound then, exact elsewhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from rlplan.files.frozen import FrozenDict
from rlplan.framework import HostUse
from rlplan.job import Engines, Job
from rlplan.layout import ModelCut
from rlplan.models import ModelArchitecture
from rlplan.parts import num_parameters
from rlplan.plan import ResourcePool
from rlplan.results.forecast import MemoryForecast, MemoryMoment
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.simulator.columns import RECOMPUTES, SHARD_COLUMNS, Floats
from rlplan.simulator.generation.generating import begun, host_cache_bytes
from rlplan.simulator.generation.judging import judging
from rlplan.simulator.memory.task_memory import (
    COMMUNICATORS,
    CONTEXT,
    KV_CACHE,
    QUANTISED,
    generation_terms,
    generation_weight_bytes,
    kept_batch,
    least_kv_bytes,
    passes_in_flight,
    quantised_term,
    useful_kv_bytes,
)
from rlplan.simulator.memory.terms import (
    TaskMemory,
    Terms,
    gradients_term,
    optimizer_term,
    weights_term,
)
from rlplan.simulator.memory.transition_memory import (
    Room,
    bucket_terms,
    cache_shortage_bytes,
    generation_room,
    has_own_context,
    hundredths,
    keeps_cache,
    serving_shortage_bytes,
    synced_bytes,
    transition_terms,
)
from rlplan.simulator.model import OFFLOADED, largest_shard, layer_activation_bytes
from rlplan.simulator.placed import PlacedPlan, PlacedTask, PlacedTasks, PlacedTransition
from rlplan.simulator.stages import task_memory
from rlplan.workload import longest

TRAINERS, ENGINES = "trainers' processes", "engines' processes"
HOST_CACHE = "KV cache"
SLEEPING = "weights of the sleeping engine"
LOADING = "models that are being loaded"
WHOLE = "whole model for the first sync of adapters"
COPIED = "copy of the actor's weights"
GRADIENT_BYTES = 4  # as an optimizer on the host steps with them


def host_terms(tasks: Sequence[tuple[PlacedTask, TaskMemory]]) -> Terms:
    """Return the bytes of host memory that a pool keeps for one GPU, by term, when they are most.

    That is in the middle of a run, with all that is off-loaded, or while models are loaded: whole ones beside
    processes and a sleeping engine. Or it is the first sync of weights to an engine that has none yet.
    """
    if not tasks:
        return {}
    any_ = tasks[0][0]
    use, engines = any_.framework.host, any_.job.engines
    away: Terms = {}
    for task, memory in tasks:
        for term, size in _off_loaded(task, memory).items():
            away[term] = max(away.get(term, 0), size)
    lasting = _processes(tasks, use) | _sleeping(tasks, use, engines)
    loading = lasting | {LOADING: _loaded_bytes([task for task, _ in tasks], use)}
    synced = _processes(tasks, use) | {WHOLE: _whole_first_bytes([task for task, _ in tasks])}
    return max(lasting | away, loading, synced, key=lambda terms: sum(terms.values()))


def _off_loaded(placed: PlacedTask, memory: TaskMemory) -> Terms:
    """Return what a task keeps there: states between uses or for good, and inputs of layers until they run back."""
    role, options = placed.task.role, placed.options
    weights = weights_term(role)
    found: Terms = {}
    if placed.layout.offload:
        found = {
            name: memory.transient.get(name, 0) + memory.waiting.get(name, 0)
            for name in off_loaded_terms(placed)
        }
    copied = placed.framework.host.keeps_actor_weights and options.host_copy
    if placed.trains and role == "actor" and copied:
        held = memory.resident.get(weights, 0) + memory.transient.get(weights, 0)
        found[COPIED] = held
    stored = placed.stored
    if options.host_states:
        found[weights] = placed.kept_states(placed.state_ranks, stored.weight_bytes)
    if placed.trains and (options.host_states or options.host_optimizer):
        share = 1.0 if options.host_states else options.host_optimizer
        each = stored.optimizer_bytes + GRADIENT_BYTES
        found[f"{role} optimizer on the host"] = round(
            share * placed.kept_states(placed.state_ranks, each)
        )
    if placed.trains and placed.recompute == OFFLOADED:
        found[f"{role} inputs of layers"] = _kept_inputs(placed)
    return found


def off_loaded_terms(placed: PlacedTask) -> tuple[str, ...]:
    """Return the transient terms of a task that lie in host memory between uses, where its layout off-loads."""
    role = placed.task.role
    weights = weights_term(role)
    if not placed.trains_role:
        return (weights,)
    names = {"optimizer": optimizer_term(role), "weights": weights}
    if "gradients" in placed.framework.unpinned:  # else they are dropped
        names["gradients"] = gradients_term(role)
    states = placed.off_loadable if placed.trains else ()
    return tuple(names[state] for state in states if state in names)


# What of a layout the inputs depend on that it keeps in host memory.
INPUT_COLUMNS = (*SHARD_COLUMNS, "dp", "pp", "chunks", "micro_batch", "token_budget", "recompute")


def inputs_away_bytes(table: PlacedTasks) -> Floats:
    """Return the bytes of layers' inputs that each layout keeps in host memory until they run back. Shape (layouts,)."""

    def away(placed: PlacedTask) -> tuple[int]:
        return (_kept_inputs(placed) if placed.recompute == OFFLOADED else 0,)

    if not table.any.trains or not np.any(table.columns.recompute == RECOMPUTES.index(OFFLOADED)):
        return np.zeros(len(table.columns))
    return np.asarray(table.by(INPUT_COLUMNS, away)[0])


def _kept_inputs(placed: PlacedTask) -> int:
    """Return the bytes of the inputs of a first stage's layers, of all micro-batches in flight."""
    layout = placed.layout
    passes = -(-placed.local // layout.micro_batch) * layout.chunks
    stages, chunks = np.array(layout.pp), np.array(layout.chunks)
    held = min(passes, int(passes_in_flight(stages, np.zeros_like(stages), chunks)))
    inputs = layer_activation_bytes(placed.model, kept_batch(placed), "full")
    return inputs * -(-placed.model.num_layers // layout.pp) * held // layout.chunks


def _processes(tasks: Sequence[tuple[PlacedTask, TaskMemory]], use: HostUse) -> Terms:
    roles = {task.task.role for task, _ in tasks if task.task.kind != "generate"}
    generates = any(task.task.kind == "generate" for task, _ in tasks)
    trainers = len(roles) if use.processes_by_role else min(1, len(roles))
    return {TRAINERS: trainers * use.trainer_bytes, ENGINES: generates * use.engine_bytes}


def _sleeping(
    tasks: Sequence[tuple[PlacedTask, TaskMemory]], use: HostUse, engines: Engines
) -> Terms:
    """Return the weights of an engine that sleeps while others work on its GPUs."""
    generating = [task for task, _ in tasks if task.task.kind == "generate"]
    alone = len(generating) == len(tasks)
    if alone or not (use.keeps_engine_weights and engines.sleeps):
        return {}
    held = sum(generation_weight_bytes(task) for task in generating)
    return {SLEEPING: round(use.pinned_factor * held)}


def _loaded_bytes(tasks: Sequence[PlacedTask], use: HostUse) -> int:
    """Return the host memory for one GPU while whole models are loaded; a process loads its models one after another."""
    if use.loads == "none":
        return 0
    trained = {task.task.role: task for task in tasks if task.task.kind != "generate"}
    each = [_read_bytes(task, use) for task in trained.values()]
    return sum(each) if use.processes_by_role else max(each, default=0)


def _whole_first_bytes(tasks: Sequence[PlacedTask]) -> int:
    """Return the bytes of a model that a rank has whole in host memory for an engine on its GPUs that starts without weights."""
    if not any(task.task.generates for task in tasks):
        return 0
    whole = (
        num_parameters(task.model, task.task.head) * task.stored.weight_bytes
        for task in tasks
        if task.trains and task.adapter is not None and task.adapter.whole_first
    )
    return max(whole, default=0)


def _read_bytes(task: PlacedTask, use: HostUse) -> int:
    model: ModelArchitecture = task.model
    size = num_parameters(model, task.task.head) * use.loaded_bytes
    tied = use.loads == "tied" and model.tied_embeddings
    if use.loads == "sharded" and task.layout.zero == FULLY_SHARDED:
        cut = ModelCut(tp=task.layout.tp, pp=task.layout.pp)
        shard = largest_shard(model, task.task.head, cut)
        return -(-shard // task.state_ranks) * use.loaded_bytes
    if tied or use.loads == "sharded":
        return size
    return -(-size // task.site.gpus_per_node)


def host_capacity_bytes(job: Job, device: str, use: HostUse) -> int:
    """Return a GPU's least share of the host memory that processes may take; 0 where nobody says it."""
    shares = [
        int(use.usable_fraction * group.host_memory_bytes) // group.gpus_per_node
        for group in job.cluster
        if group.gpu == device and group.host_memory_bytes is not None
    ]
    return min(shares, default=0)


TRANSITION = "transition"
APART = "processes of other roles"
BESIDE = "generation engine beside its share"
WEIGHTS = ("weights", "adapters")


def pool_memory(placed: PlacedPlan, pool: ResourcePool) -> MemoryForecast:
    """Return the fullest GPU of a pool at its peak, in bytes by term."""
    if pool.is_host:
        return MemoryForecast(
            pool=pool.name, gpu_peak_bytes=0, capacity_bytes=0, terms=FrozenDict(), peak_task=""
        )
    moments = memory_moments(placed, pool)
    name = max(moments, key=lambda moment: sum(moments[moment].values()), default="")
    terms = moments.get(name, FrozenDict())
    sheet = placed.facts.device(pool.device).sheet
    tasks, use = placed.tasks_on(pool), placed.facts.framework(placed.plan.job.framework).host
    away = host_terms([(task, task_memory(task)) for task in tasks])
    if placed.plan.job.kv_offload is not None and placed.generate in tasks:
        left = max(0.0, kv_bytes_left(placed))
        away[HOST_CACHE] = round(host_cache_bytes(placed.generate, left))
    return MemoryForecast(
        pool=pool.name,
        gpu_peak_bytes=sum(terms.values()),
        capacity_bytes=sheet.memory_bytes,
        terms=terms,
        peak_task=name,
        host_terms=FrozenDict({term: size for term, size in away.items() if size}),
        host_capacity_bytes=(
            0 if sheet.kind == "cpu" else host_capacity_bytes(placed.plan.job, pool.device, use)
        ),
        cache_shortage_bytes=max(
            (_cache_shortage_bytes(placed, task) for task in tasks), default=0
        ),
    )


def fullest_training(placed: PlacedPlan) -> MemoryMoment | None:
    """Return what lies in a GPU's memory, in bytes by term, during the task that trains and fills most of it; None where none trains."""
    found = [
        MemoryMoment(
            pool=pool.name,
            during=name,
            terms=terms,
            capacity_bytes=placed.facts.device(pool.device).sheet.memory_bytes,
        )
        for pool in placed.plan.pools
        if not pool.is_host and any(task.task.trains for task in placed.tasks_on(pool))
        for name, terms in memory_moments(placed, pool).items()
        if any(task.task.name == name and task.task.trains for task in placed.tasks_on(pool))
    ]
    known = [each for each in found if each.capacity_bytes]
    return max(known, key=lambda each: sum(each.terms.values()) / each.capacity_bytes, default=None)


def peak_at_limits_bytes(placed: PlacedPlan, pool: ResourcePool) -> int:
    """Return the peak of a pool's fullest GPU if all sequences of a micro-batch were as long as their limits let them."""
    plan, work = placed.plan, placed.plan.job.workload
    prompt, response, texts = longest(work.prompt_tokens), longest(work.response_tokens), work.texts
    if texts is not None and texts.response_tokens is not None:
        texts = replace(texts, response_tokens=longest(texts.response_tokens))
    limits = replace(work, prompt_tokens=prompt, response_tokens=response, texts=texts)
    if limits == work or pool.is_host:
        return 0
    at_limits = replace(plan, job=replace(plan.job, workload=limits))
    return pool_memory(PlacedPlan(at_limits, placed.facts), pool).gpu_peak_bytes


def memory_moments(placed: PlacedPlan, pool: ResourcePool) -> dict[str, FrozenDict[str, int]]:
    """Return the bytes by term of a pool's fullest GPU, by the task during which they lie there.

    Generation and syncs of weights have names of their own among the moments.
    """
    tasks, resident = placed.tasks_on(pool), staying_on(placed, pool)
    generating = [task for task in tasks if task.task.kind == "generate"]
    moments = {
        task.task.name: passing(task_memory(task)) for task in tasks if task.task.kind != "generate"
    }
    _swap_references(placed, tasks, moments, resident)
    generation: dict[str, Terms] = {}
    for task in generating:
        resident |= _beside_terms(task)
        generation |= _generation_moments(placed, task)
        if not placed.plan.job.engines.sleeps:
            awake = generation[task.task.name]
            for terms in moments.values():
                terms |= {term: awake[term] for term in _engine_terms(task)}
    for task in generating:
        resident |= _copy_terms(placed, task)
    moments |= generation
    moments |= _buckets_between_pools(placed, pool, generation)
    _lay_blocks(placed, pool, moments)
    # Weights that are copied for a task take no further memory if another task keeps them on the GPU.
    return {
        name: FrozenDict({term: size for term, size in (resident | transient).items() if size})
        for name, transient in moments.items()
    }


def _swap_references(
    placed: PlacedPlan, tasks: Iterable[PlacedTask], moments: Mapping[str, Terms], resident: Terms
) -> None:
    """Take off what a reference needs of its own as it scores, where its weights lie in place of the actor's.

    Args:
        moments: Terms of each task, what stays left out.
        resident: What stays.
    """
    if not placed.facts.framework(placed.plan.job.framework).swaps_reference:
        return
    taken = {
        weights_term("reference"): resident.get(weights_term("actor"), 0),
        QUANTISED: resident.get(quantised_term("actor"), 0),
    }
    for task in tasks:
        if task.task.role == "reference" and task.task.kind == "infer":
            terms = moments[task.task.name]
            terms |= {name: max(0, terms[name] - taken[name]) for name in taken.keys() & terms}


def staying_on(placed: PlacedPlan, pool: ResourcePool) -> Terms:
    """Return what stays on a pool's GPUs once all tasks have run, what generates there left out.

    Where each role that trains or scores is a process, each has a context, and buffers of its own groups.
    """
    tasks = placed.tasks_on(pool)
    memories = list(map(task_memory, tasks))
    found, processes = staying(memories), _tasks_by_process(placed, tasks)
    if len(processes) > 1:
        found[APART] = (len(processes) - 1) * placed.facts.device(pool.device).context_bytes
        met = sum(max(map(_met_bytes, own)) for own in processes.values())
        found |= {COMMUNICATORS: met} if met else {}
    return found


def _tasks_by_process(
    placed: PlacedPlan, tasks: Iterable[PlacedTask]
) -> dict[str, list[PlacedTask]]:
    """Return by role the tasks that a process of their own runs, generation aside; none where one process runs all."""
    found: dict[str, list[PlacedTask]] = {}
    if placed.facts.framework(placed.plan.job.framework).host.processes_by_role:
        for task in tasks:
            if task.task.kind != "generate":
                found.setdefault(task.task.role, []).append(task)
    return found


def _met_bytes(task: PlacedTask) -> int:
    return task_memory(task).transient.get(COMMUNICATORS, 0)


def _lay_blocks(placed: PlacedPlan, pool: ResourcePool, moments: Mapping[str, Terms]) -> None:
    """Add the blocks that processes of other roles keep to what lies on a GPU at each moment.

    A role's own process works in its blocks again; the actor's sends weights from them. While an engine that never sleeps
    generates they are left out: what trains beside it is counted with it.
    """
    tasks = placed.tasks_on(pool)
    kept = kept_blocks(placed, tasks)
    if not kept:
        return
    contexts = staying_on(placed, pool).get(APART, 0)
    own = {task.task.name: task.task.role for task in tasks if task.task.kind != "generate"}
    own[TRANSITION] = placed.generate.task.role
    for name, terms in moments.items():
        if name not in own and not placed.plan.job.engines.sleeps:
            continue
        beside = sum(size for role, size in kept.items() if role != own.get(name))
        if beside:
            terms[APART] = contexts + beside


def kept_blocks(placed: PlacedPlan, tasks: Iterable[PlacedTask]) -> dict[str, int]:
    """Return by role the bytes of blocks that its process keeps for what its fullest task took and gave back.

    None are where the allocator is emptied, nor of tasks whose states leave the GPU, before which blocks are given back.
    """
    if not placed.facts.framework(placed.plan.job.framework).keeps_blocks:
        return {}
    return {
        role: max(
            sum(passing(task_memory(task)).values()) - task.device.context_bytes
            if not task.layout.offload
            else 0
            for task in own
        )
        for role, own in _tasks_by_process(placed, tasks).items()
    }


def staying(memories: Iterable[TaskMemory]) -> Terms:
    """Return what stays of a pool's tasks once all have run: tasks of one role share terms of one name.

    Buffers of groups of ranks stay once they have met: of the task that meets in most.
    """
    found: Terms = {}
    for memory in memories:
        met = memory.transient.get(COMMUNICATORS, 0)
        for term, size in (*memory.resident.items(), *([(COMMUNICATORS, met)] if met else [])):
            found[term] = max(found.get(term, 0), size)
    return found


def passing(memory: TaskMemory) -> Terms:
    """Return what a task takes beside what stays, and gives back."""
    return {term: size for term, size in memory.transient.items() if term != COMMUNICATORS}


def kv_bytes_left(placed: PlacedPlan) -> float:
    """Return the bytes of each GPU that the plan leaves to the KV cache; 0 if there are none.

    The generation engine may fill its `memory_fraction`, of what its sheet says, with the weights it generates
    with, what it computes in, and its cache.
    """
    return _cache_bytes(placed.generate, _room(placed, placed.generate))


def memory_fraction_left(
    placed: PlacedPlan, generate: PlacedTask, usable_fraction: float = 1.0
) -> float:
    """Return the largest share that leaves room for all else on the generating pool, at most the engine's usual one.

    Args:
        usable_fraction: Share of every GPU's memory that a plan may fill.
    """
    if generate.engine.share.counts_others == "everything":
        return generate.layout.memory_fraction
    usable = round(usable_fraction * generate.device.sheet.memory_bytes)
    usable -= 0 if _alone(placed, generate) else generate.device.context_bytes
    return hundredths(float(_room(placed, generate).fraction_left(generate.engine, usable)))


_rooms: WeakKeyDictionary[PlacedPlan, dict[PlacedTask, Room]] = WeakKeyDictionary()


def _room(placed: PlacedPlan, generate: PlacedTask) -> Room:
    """Return what lies on a GPU of the generating pool while its engine generates; memory and time both ask for it."""
    known = _rooms.setdefault(placed, {})
    if generate not in known:
        known[generate] = _found_room(placed, generate)
    return known[generate]


def _found_room(placed: PlacedPlan, generate: PlacedTask) -> Room:
    pool = placed.plan.pool(generate.layout.pool)
    beside = placed.tasks_on(pool)
    others = staying_on(placed, pool) | _beside_terms(generate)
    started = sum(size for term, size in others.items() if term.endswith(WEIGHTS))
    transition = _transition_on_pool(placed, generate)
    coming = transition or placed.transition_to(generate)
    synced = 0 if coming is None else synced_bytes(coming)
    kept = kept_blocks(placed, beside) if placed.plan.job.engines.sleeps else {}
    staying_bytes = sum(others.values()) + sum(kept.values())
    room = generation_room(generate, transition, staying_bytes, started, synced)
    return replace(room, passing_bytes=_passing_bytes(beside))


def _passing_bytes(tasks: Sequence[PlacedTask]) -> int:
    """Return what the hungriest task beside an engine that does not sleep takes and gives back, its context left out; 0 if it sleeps."""
    beside = (task for task in tasks if not (task.task.generates or task.job.engines.sleeps))
    each = (sum(passing(task_memory(task)).values()) - task.device.context_bytes for task in beside)
    return max(each, default=0)


def _cache_bytes(generate: PlacedTask, room: Room) -> float:
    return float(room.cache_bytes(generate.engine, generate.layout.memory_fraction))


def _generation_moments(placed: PlacedPlan, generate: PlacedTask) -> dict[str, Terms]:
    """Return the transient terms of generation, and of the transition before it."""
    transition, share = _transition_on_pool(placed, generate), generate.engine.share
    terms = generation_terms(generate)
    moments: dict[str, Terms] = {}
    if transition is not None:
        moments[TRANSITION] = transition_terms(transition)
    room = _room(placed, generate)
    terms[weights_term(generate.task.role, generating=True)] = room.weights_bytes
    left = _cache_bytes(generate, room)
    useful = left if share.fills else min(left, useful_kv_bytes(begun(generate)))
    terms[KV_CACHE] = round(max(least_kv_bytes(generate), useful))
    terms[BESIDE] = _beside_terms(generate).get(BESIDE, 0) + share.awake_bytes
    if _alone(placed, generate):
        terms[CONTEXT] = 0
    if transition is not None and keeps_cache(transition):
        moments[TRANSITION] |= {name: terms[name] for name in (KV_CACHE, BESIDE)}
    moments[generate.task.name] = terms
    return moments


def _alone(placed: PlacedPlan, generate: PlacedTask) -> bool:
    """Tell whether an engine's process, whose context lies beside its share, is the only one on its GPUs."""
    coming = placed.transition_to(generate)
    tasks = placed.tasks_on(placed.plan.pool(generate.layout.pool))
    return len(tasks) == 1 and coming is not None and has_own_context(coming)


def _cache_shortage_bytes(placed: PlacedPlan, task: PlacedTask) -> int:
    """Return what the share of a task's engine lacks for weights, work and the cache of one longest sequence; 0 if nothing."""
    served = judging(task) if task.job.serves else None
    if served is not None:
        return serving_shortage_bytes(served)
    if task.task.kind != "generate":
        return 0
    return cache_shortage_bytes(task, _room(placed, task))


def _beside_terms(generate: PlacedTask) -> Terms:
    layout = generate.layout
    size = generate.engine.share.lasting_bytes(layout.tp * layout.pp)
    return {BESIDE: size} if size else {}


def _engine_terms(generate: PlacedTask) -> tuple[str, ...]:
    """Return the terms that an engine keeps on its GPUs where it does not sleep."""
    return weights_term(generate.task.role, generating=True), KV_CACHE


def _buckets_between_pools(
    placed: PlacedPlan, pool: ResourcePool, generation: Mapping[str, Terms]
) -> dict[str, Terms]:
    """Return what a framework's method takes of a pool that sends weights to another, or gets them.

    Args:
        generation: Terms of the pool's generating tasks, by their names: an engine that gets weights keeps its cache,
            unless it gives it back.
    """
    for generate in placed.tasks.values():
        transition = placed.transition_to(generate) if generate.task.kind == "generate" else None
        if transition is None or transition.same_pool:
            continue
        if pool.name in {transition.train.layout.pool, generate.layout.pool}:
            sends = pool.name == transition.train.layout.pool
            terms = bucket_terms(transition, sends=sends) if transition.streams else {}
            if not sends and _alone(placed, generate):
                terms[CONTEXT] = 0
            if not sends and synced_bytes(transition):
                terms[KV_CACHE] = generation[generate.task.name][KV_CACHE]
            return {TRANSITION: terms} if terms else {}
    return {}


def _copy_terms(placed: PlacedPlan, generate: PlacedTask) -> Terms:
    """Return the generation weights that stay on a pool which does not train the model."""
    if _transition_on_pool(placed, generate) is not None:
        return {}
    size = generation_weight_bytes(generate)
    return {weights_term(generate.task.role, generating=True): size}


def _transition_on_pool(placed: PlacedPlan, generate: PlacedTask) -> PlacedTransition | None:
    """Return how weights get to a generating task from training on its own pool, if they do."""
    transition = placed.transition_to(generate)
    return transition if transition is not None and transition.same_pool else None
