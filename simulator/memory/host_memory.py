"""What a pool's tasks keep in host memory: states between their uses, inputs of layers until they run back.

A GPU's share of its node's memory is what the node has, divided by its GPUs.
"""

from rlplan.job import Job
from rlplan.models.operators import KeptBatch
from simulator.memory.task_memory import TaskMemory, Terms, weights_term
from simulator.model.activations import OFFLOADED, layer_activation_bytes
from simulator.placed.task import PlacedTask


def host_terms(placed: PlacedTask, memory: TaskMemory) -> Terms:
    """Return the bytes of host memory that a task keeps for one GPU, by term."""
    found: Terms = {}
    role = placed.task.role
    if placed.layout.offload and not placed.trains_role:
        found[weights_term(role)] = memory.transient.get(weights_term(role), 0)
    if placed.trains and placed.layout.offload:
        names = {"optimizer": f"{role} optimizer states", "weights": weights_term(role)}
        kept = (names[state] for state in placed.leaves if state in names)  # gradients are dropped
        found |= {name: memory.transient.get(name, 0) for name in kept}
    if placed.trains and placed.layout.recompute == OFFLOADED:
        found[f"{role} inputs of layers"] = _inputs_bytes(placed)
    return found


def _inputs_bytes(placed: PlacedTask) -> int:
    """Return the bytes of the inputs of a stage's layers of one micro-batch."""
    layout, model = placed.layout, placed.model
    batch = KeptBatch(placed.shard, *placed.fullest_micro_batch, placed.engine.fused_attention)
    inputs = layer_activation_bytes(model, batch, "full")
    return inputs * -(-model.num_layers // layout.pp)


def host_capacity_bytes(job: Job, device: str) -> int:
    """Return a GPU's least share of host memory on nodes of a device; 0 where nobody says it."""
    shares = [
        group.host_memory_bytes // group.gpus_per_node
        for group in job.cluster
        if group.gpu == device and group.host_memory_bytes is not None
    ]
    return min(shares, default=0)
