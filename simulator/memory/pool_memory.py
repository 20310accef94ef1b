"""What lies in the memory of a pool's fullest GPU, and when it is fullest.

The peak of a colocated pool is all residents plus the largest transients. Every task is taken on
its own fullest pipeline stage, which for tasks of different pipelines need not be the same GPU: an
upper bound then, exact elsewhere.
"""

from profiles.facts import Facts
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import BUCKET_BYTES, Plan, ResourcePool, TaskPlan
from rlplan.precision import PRECISIONS
from rlplan.results.forecast import MemoryForecast
from simulator.costs.pricing import precision_of
from simulator.costs.sharding import FULLY_SHARDED
from simulator.costs.transition import volume_of
from simulator.memory.task_memory import (
    CONTEXT,
    KV_CACHE,
    TaskMemory,
    Terms,
    generation_terms,
    generation_weight_bytes,
    least_kv_bytes,
    task_memory,
    useful_kv_bytes,
    weights_term,
)
from simulator.model.weights import largest_shard, layer_parameters
from simulator.site import Site, sites_of

__all__ = [
    "TaskMemory",
    "generation_kv_bytes",
    "kv_bytes_left",
    "least_kv_bytes",
    "pool_memory",
    "task_memory",
    "transition_terms",
]

# Layers that the transition of fully sharded weights gathers at a time: the default of DeepSpeed's
# `tp_gather_partition_size` (DeepSpeed 0.14, runtime/config.py, HybridEngineConfig).
PIECE_LAYERS = 8

TRANSITION = "transition"
KEPT_FREE = "kept free of the generation engine"


def pool_memory(plan: Plan, pool: ResourcePool, facts: Facts) -> MemoryForecast:
    """Return the fullest GPU of a pool at its peak, in bytes by term."""
    if pool.is_host:
        return MemoryForecast(
            pool=pool.name, gpu_peak_bytes=0, capacity_bytes=0, terms=FrozenDict(), peak_task=""
        )
    site = sites_of(plan, facts)[pool.name]
    tasks = _tasks_on(plan, pool)
    resident: Terms = {}
    moments: dict[str, Terms] = {}
    for task in tasks:
        memory = task_memory(task, plan.tasks[task.name], site, plan.job, facts)
        for term, size in memory.resident.items():
            resident[term] = max(resident.get(term, 0), size)
        if task.kind != "generate":
            moments[task.name] = dict(memory.transient)
    for task in tasks:
        if task.kind == "generate":
            resident |= _copy_terms(plan, task, facts)
            moments |= _generation_moments(plan, task, site, resident, facts)
    name = max(moments, key=lambda moment: sum(moments[moment].values())) if moments else ""
    terms = {term: size for term, size in (resident | moments.get(name, {})).items() if size}
    return MemoryForecast(
        pool=pool.name,
        gpu_peak_bytes=sum(terms.values()),
        capacity_bytes=facts.device(pool.device).sheet.memory_bytes,
        terms=FrozenDict(terms),
        peak_task=name,
    )


def kv_bytes_left(plan: Plan, facts: Facts) -> float:
    """Return the bytes of each GPU that the plan leaves to the KV cache; 0 if there are none.

    The generation engine may fill its `memory_fraction` of the device (or, for engines of that kind,
    of what is free once it is loaded), less all residents of the pool, the weights it generates
    with, and what it computes in.
    """
    task = next(task for task in _tasks(plan) if task.kind == "generate")
    pool = plan.pool_of(task.name)
    site = sites_of(plan, facts)[pool.name]
    resident: Terms = {}
    for other in _tasks_on(plan, pool):
        memory = task_memory(other, plan.tasks[other.name], site, plan.job, facts)
        for term, size in memory.resident.items():
            resident[term] = max(resident.get(term, 0), size)
    resident |= _copy_terms(plan, task, facts)
    return generation_kv_bytes(
        sum(resident.values()),
        _train_on_pool(plan, task),
        plan.tasks[task.name],
        plan.transition,
        site,
        plan.job,
        facts,
    )


def generation_kv_bytes(
    resident_bytes: float,
    train: TaskPlan | None,
    generate: TaskPlan,
    transition: str,
    site: Site,
    job: Job,
    facts: Facts,
    role: str = "actor",
) -> float:
    """Return the bytes of each GPU left to the KV cache; 0 if there are none.

    Args:
        resident_bytes: All residents of the pool, the weights of a separate copy included.
        train: The layout that trains the model on the same pool, whose shard may be shared; None
            if it trains elsewhere.
    """
    capacity = facts.device(site.device).sheet.memory_bytes
    taken = resident_bytes + sum(generation_terms(role, generate, site, job, facts).values())
    if train is not None:
        taken += extra_weight_bytes(role, transition, train, generate, job, facts)
    if facts.engine(generate.engine).cache_of_free:
        return generate.memory_fraction * max(0.0, capacity - taken)
    return max(0.0, generate.memory_fraction * capacity - taken)


def extra_weight_bytes(
    role: str, transition: str, train: TaskPlan, generate: TaskPlan, job: Job, facts: Facts
) -> int:
    """Return the weight bytes that generation adds to the resident shard of training.

    Zero-redundancy groups grow the train shard into the generate shard, and equal layouts share
    one copy; all others keep the train shard beside the weights that they generate with (Sheng et
    al. 2025, HybridFlow, section 5.3).
    """
    shard = generation_weight_bytes(role, generate, job, facts)
    shares = transition in ("hybridflow", "none")
    if facts.engine(train.engine).reshards_in_buckets and _gathers_first(train):
        shares = False  # what is sharded further is no slice of the generate shard
    if shares and not facts.engine(generate.engine).gathers_weights:
        return max(0, shard - _train_shard_bytes(role, train, job))
    return shard


def transition_terms(
    role: str,
    transition: str,
    train: TaskPlan,
    generate: TaskPlan,
    site: Site,
    job: Job,
    facts: Facts,
    bucket_bytes: int = BUCKET_BYTES,
) -> Terms:
    """Return what a transition on one pool takes of each GPU beside the pool's residents.

    Args:
        bucket_bytes: Of the plan; for trainers that reshard in buckets.
    """
    extra = extra_weight_bytes(role, transition, train, generate, job, facts)
    volume = volume_of(transition, _model_bytes(role, job), train, generate)
    peak = round(volume.peak_weight_bytes) - _train_shard_bytes(role, train, job)
    if facts.engine(generate.engine).gathers_weights:
        peak = extra
    elif facts.engine(train.engine).reshards_in_buckets:
        peak = _bucketed_peak(role, transition, train, generate, job, facts)
        under_way = min(bucket_bytes, round(max(0.0, volume.received_bytes)))
        peak += max(under_way, _second_copy_bytes(role, train, job))
    elif train.zero == FULLY_SHARDED:
        # The published formula has the whole model at the peak; software gathers it piece by piece.
        peak = min(peak, extra + _piece_bytes(role, job))
    return {
        weights_term(role, generating=True): max(extra, peak),
        CONTEXT: facts.device(site.device).context_bytes,
    }


def _bucketed_peak(
    role: str, transition: str, train: TaskPlan, generate: TaskPlan, job: Job, facts: Facts
) -> int:
    """Return what a trainer that reshards in buckets holds at the peak beside its shard.

    A train shard that is lent stays the part of the generate shard that it is. Any other one is
    there until the generate shard is written; what is sharded further is gathered whole before.
    """
    shard = generation_weight_bytes(role, generate, job, facts)
    if _gathers_first(train):
        parameters = largest_shard(job.architecture(role), "lm", train.tp, train.pp)
        return shard + parameters * PRECISIONS[precision_of(job)].weight_bytes
    if transition in ("hybridflow", "none") and train.tp == generate.tp:
        return extra_weight_bytes(role, transition, train, generate, job, facts)
    return shard


def _second_copy_bytes(role: str, train: TaskPlan, job: Job) -> int:
    """Return what is there for a moment beside weights that are gathered whole before all else.

    Experts are gathered out of a copy of all that the rank holds; fully sharded weights are gathered in
    their modules, and copied one after another from there.
    """
    model, value_bytes = job.architecture(role), PRECISIONS[precision_of(job)].weight_bytes
    if train.ep > 1 or (train.zero == FULLY_SHARDED and _gathers_first(train)):
        return largest_shard(model, "lm", train.tp, train.pp, train.ep) * value_bytes
    return 0


def _gathers_first(train: TaskPlan) -> bool:
    """Tell whether weights are gathered over copies, or experts over their ranks, before all else."""
    return train.ep > 1 or (train.zero > 1 and train.dp * train.cp > 1)


def _piece_bytes(role: str, job: Job) -> int:
    """Return the bytes of the layers that a gather of fully sharded weights holds whole at a time."""
    model = job.architecture(role)
    pieces = min(model.num_layers, PIECE_LAYERS) * layer_parameters(model, 1)
    ends = model.embedding_parameters
    return (pieces + ends) * PRECISIONS[precision_of(job)].weight_bytes


def _generation_moments(
    plan: Plan, task: Task, site: Site, resident: Terms, facts: Facts
) -> dict[str, Terms]:
    """Return the transient terms of generation, and of the transition before it."""
    generate, job, role = plan.tasks[task.name], plan.job, task.role
    train = _train_on_pool(plan, task)
    terms = generation_terms(role, generate, site, job, facts)
    moments: dict[str, Terms] = {}
    if train is not None:
        extra = extra_weight_bytes(role, plan.transition, train, generate, job, facts)
        terms[weights_term(role, generating=True)] = extra
        moments[TRANSITION] = transition_terms(
            role, plan.transition, train, generate, site, job, facts, plan.bucket_bytes
        )
    left = generation_kv_bytes(
        sum(resident.values()), train, generate, plan.transition, site, job, facts, role
    )
    least = least_kv_bytes(role, generate, job, facts)
    terms[KV_CACHE] = round(max(least, min(left, useful_kv_bytes(role, generate, job, facts))))
    if left < least:
        # The engine refuses to start: its share of the device, not the device, is what is too small.
        sheet = facts.device(site.device).sheet
        of_free = facts.engine(generate.engine).cache_of_free
        kept = 0.0 if of_free else (1 - generate.memory_fraction) * sheet.memory_bytes
        terms[KEPT_FREE] = round(kept)
    moments[task.name] = terms
    return moments


def _copy_terms(plan: Plan, task: Task, facts: Facts) -> Terms:
    """Return the generation weights that stay on a pool which does not train the model."""
    if _train_on_pool(plan, task) is not None:
        return {}
    size = generation_weight_bytes(task.role, plan.tasks[task.name], plan.job, facts)
    return {weights_term(task.role, generating=True): size}


def _train_on_pool(plan: Plan, task: Task) -> TaskPlan | None:
    """Return the layout that trains a generate task's model on the same pool, if there is one."""
    pool = plan.tasks[task.name].pool
    for other in _tasks(plan):
        if other.kind == "train" and other.role == task.role:
            layout = plan.tasks[other.name]
            return layout if layout.pool == pool else None
    return None


def _tasks(plan: Plan) -> tuple[Task, ...]:
    known = tasks_of(load_algorithm(plan.job.algorithm), plan.job)
    return tuple(task for task in known if task.name in plan.tasks)


def _tasks_on(plan: Plan, pool: ResourcePool) -> tuple[Task, ...]:
    return tuple(task for task in _tasks(plan) if plan.tasks[task.name].pool == pool.name)


def _model_bytes(role: str, job: Job) -> int:
    return job.architecture(role).num_parameters() * PRECISIONS[precision_of(job)].weight_bytes


def _train_shard_bytes(role: str, train: TaskPlan, job: Job) -> int:
    parameters = largest_shard(job.architecture(role), "lm", train.tp, train.pp, train.ep)
    if train.zero == FULLY_SHARDED:
        parameters = -(-parameters // (train.dp * train.cp))
    return parameters * PRECISIONS[precision_of(job)].weight_bytes
