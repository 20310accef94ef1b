"""What lies in the memory of a node's host for one of its GPUs, while a run is under way and while models are loaded."""

from collections.abc import Sequence

import numpy as np

from rlplan.framework import HostUse
from rlplan.job import Engines, Job
from rlplan.models.model import ModelArchitecture
from rlplan.parts import num_parameters
from rlplan.rules.layouts import FULLY_SHARDED
from simulator.memory.task_memory import (
    TaskMemory,
    Terms,
    generation_weight_bytes,
    weights_term,
)
from simulator.memory.working import kept_batch, passes_in_flight
from simulator.model.activations import OFFLOADED, layer_activation_bytes
from simulator.model.weights import largest_shard
from simulator.placed.task import PlacedTask

TRAINERS, ENGINES = "trainers' processes", "engines' processes"
SLEEPING = "weights of the sleeping engine"
LOADING = "models that are being loaded"
GRADIENT_BYTES = 4  # as an optimizer on the host steps with them


def host_terms(tasks: Sequence[tuple[PlacedTask, TaskMemory]]) -> Terms:
    """Return the bytes of host memory that a pool keeps for one GPU, by term, when they are most.

    That is in the middle of a run, with all that is off-loaded, or while models are loaded: whole ones beside
    processes and a sleeping engine.
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
    return max(lasting | away, loading, key=lambda terms: sum(terms.values()))


def _off_loaded(placed: PlacedTask, memory: TaskMemory) -> Terms:
    """Return what a task keeps there: states between uses or for good, and inputs of layers until they run back."""
    found: Terms = {}
    role, layout, options = placed.task.role, placed.layout, placed.options
    weights, states = weights_term(role), f"{role} optimizer states"
    if layout.offload and not placed.trains_role:
        found[weights] = memory.transient.get(weights, 0)
    if placed.trains and layout.offload:
        names = {"optimizer": states, "weights": weights}
        kept = (names[state] for state in placed.leaves if state in names)  # gradients are dropped
        found |= {name: memory.transient.get(name, 0) for name in kept}
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
    """Return what whole models take of the host for one GPU while they are read: those of a process one by one."""
    if use.loads == "none":
        return 0
    trained = {task.task.role: task for task in tasks if task.task.kind != "generate"}
    each = [_read_bytes(task, use) for task in trained.values()]
    return sum(each) if use.processes_by_role else max(each, default=0)


def _read_bytes(task: PlacedTask, use: HostUse) -> int:
    model: ModelArchitecture = task.model
    size = num_parameters(model, task.task.head) * use.loaded_bytes
    tied = use.loads == "tied" and model.tied_embeddings
    if use.loads == "sharded" and task.layout.zero == FULLY_SHARDED:
        cut = largest_shard(model, task.task.head, task.layout.tp, task.layout.pp)
        return -(-cut // task.state_ranks) * use.loaded_bytes
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
