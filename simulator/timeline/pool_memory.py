"""What lies in the memory of a pool's fullest GPU, and when it is fullest.

The peak of a colocated pool is all residents plus the largest transients. Every task is taken on
its own fullest pipeline stage, which for tasks of different pipelines need not be the same GPU: an
upper bound then, exact elsewhere.
"""

from collections.abc import Iterable

from rlplan.files.frozen import FrozenDict
from rlplan.plan import ResourcePool
from rlplan.results.forecast import MemoryForecast
from simulator.memory.task_memory import (
    KV_CACHE,
    Terms,
    generation_terms,
    generation_weight_bytes,
    host_capacity_bytes,
    host_terms,
    least_kv_bytes,
    useful_kv_bytes,
    weights_term,
)
from simulator.memory.transition_memory import (
    bucket_terms,
    extra_weight_bytes,
    generation_kv_bytes,
    transition_terms,
)
from simulator.placed.plan import PlacedPlan, PlacedTransition
from simulator.placed.task import PlacedTask
from simulator.stages import task_memory

TRANSITION = "transition"
KEPT_FREE = "kept free of the generation engine"


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
    memories = ((task, task_memory(task)) for task in placed.tasks_on(pool))
    away = residents(FrozenDict(host_terms(task, memory)) for task, memory in memories)
    return MemoryForecast(
        pool=pool.name,
        gpu_peak_bytes=sum(terms.values()),
        capacity_bytes=sheet.memory_bytes,
        terms=terms,
        peak_task=name,
        host_terms=FrozenDict({term: size for term, size in away.items() if size}),
        host_capacity_bytes=(
            0 if sheet.kind == "cpu" else host_capacity_bytes(placed.plan.job, pool.device)
        ),
    )


def memory_moments(placed: PlacedPlan, pool: ResourcePool) -> dict[str, FrozenDict[str, int]]:
    """Return the bytes by term of a pool's fullest GPU, by the task during which they lie there.

    Generation and syncs of weights have names of their own among the moments.
    """
    tasks = placed.tasks_on(pool)
    memories = [(task, task_memory(task)) for task in tasks]
    resident = residents(memory.resident for _, memory in memories)
    generating = [task for task in tasks if task.task.kind == "generate"]
    moments = {
        task.task.name: dict(memory.transient)
        for task, memory in memories
        if task.task.kind != "generate"
    }
    for task in generating:
        resident |= _copy_terms(placed, task)
        moments |= _generation_moments(placed, task, resident)
    moments |= _buckets_between_pools(placed, pool)
    # Weights that come for a task take nothing more where another one leaves them there.
    return {
        name: FrozenDict({term: size for term, size in (resident | transient).items() if size})
        for name, transient in moments.items()
    }


def residents(each: Iterable[FrozenDict[str, int]]) -> Terms:
    """Return the resident terms of a pool: tasks of one role share terms of one name."""
    found: Terms = {}
    for terms in each:
        for term, size in terms.items():
            found[term] = max(found.get(term, 0), size)
    return found


def kv_bytes_left(placed: PlacedPlan) -> float:
    """Return the bytes of each GPU that the plan leaves to the KV cache; 0 if there are none.

    The generation engine may fill its `memory_fraction` of the device (or, for engines of that kind,
    of what is free once it is loaded), less all residents of the pool, the weights it generates
    with, and what it computes in.
    """
    generate = placed.generate
    beside = placed.tasks_on(placed.plan.pool(generate.layout.pool))
    resident = residents(task_memory(task).resident for task in beside)
    resident |= _copy_terms(placed, generate)
    return generation_kv_bytes(
        sum(resident.values()), generate, _transition_on_pool(placed, generate)
    )


def _generation_moments(
    placed: PlacedPlan, generate: PlacedTask, resident: Terms
) -> dict[str, Terms]:
    """Return the transient terms of generation, and of the transition before it."""
    transition = _transition_on_pool(placed, generate)
    terms = generation_terms(generate)
    moments: dict[str, Terms] = {}
    if transition is not None:
        terms[weights_term(generate.task.role, generating=True)] = extra_weight_bytes(transition)
        moments[TRANSITION] = transition_terms(transition, placed.plan.bucket_bytes)
    left = generation_kv_bytes(sum(resident.values()), generate, transition)
    least = least_kv_bytes(generate)
    terms[KV_CACHE] = round(max(least, min(left, useful_kv_bytes(generate))))
    if left < least:
        # The engine refuses to start: its share of the device, not the device, is what is too small.
        kept_fraction = (
            0.0 if generate.engine.cache_of_free else 1 - generate.layout.memory_fraction
        )
        terms[KEPT_FREE] = round(kept_fraction * generate.device.sheet.memory_bytes)
    moments[generate.task.name] = terms
    return moments


def _buckets_between_pools(placed: PlacedPlan, pool: ResourcePool) -> dict[str, Terms]:
    """Return what a framework's method takes of a pool that sends weights to another, or gets them."""
    for generate in placed.tasks.values():
        transition = placed.transition_to(generate) if generate.task.kind == "generate" else None
        if transition is None or transition.same_pool:
            continue
        if pool.name in {transition.train.layout.pool, generate.layout.pool}:
            return {TRANSITION: bucket_terms(transition)} if transition.streams else {}
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
