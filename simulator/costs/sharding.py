"""What data-parallel ranks exchange because they share a model's states, and what of it is hidden."""

from typing import Final

from rlplan.estimate import Estimate
from rlplan.plan import TaskPlan
from rlplan.precision import PRECISIONS
from simulator.costs.pricing import Setting

FULLY_SHARDED: Final = 3  # the ZeRO stage that shards weights too


def gradient_seconds(
    setting: Setting, layout: TaskPlan, parameters: int, num_micro_batches: int
) -> dict[str, Estimate]:
    """Return seconds by cause of what data-parallel ranks exchange in one update, nothing hidden.

    ZeRO stages as Rajbhandari et al. 2020 (arXiv:1910.02054), section 7: 0 all-reduces gradients;
    1 reduce-scatters them and gathers the updated weights; from 2 on gradients are kept sharded, so
    every micro-batch's are reduced; 3 also gathers the weights for each forward and each backward.
    """
    ranks, stride = layout.dp * layout.cp, layout.tp * layout.pp
    sizes = PRECISIONS[setting.precision]
    wire_bytes = setting.kernels.gradient_wire_bytes or sizes.gradient_bytes
    gradients, weights = parameters * wire_bytes, parameters * sizes.weight_bytes
    if ranks == 1:
        return {}
    if layout.zero == 0:
        return {"gradient reduction": setting.collective("all_reduce", gradients, ranks, stride)}
    reduced = setting.collective("reduce_scatter", gradients, ranks, stride)
    gathered = setting.collective("all_gather", weights, ranks, stride)
    if layout.zero == 1:
        return {"gradient reduction": reduced, "weight gathers": gathered}
    reductions = reduced * num_micro_batches
    gathers = 2 * num_micro_batches if layout.zero == FULLY_SHARDED else 1
    return {"gradient reduction": reductions, "weight gathers": gathered * gathers}


def weight_gather_seconds(
    setting: Setting, layout: TaskPlan, parameters: int, num_micro_batches: int
) -> dict[str, Estimate]:
    """Return seconds of gathering fully sharded weights for each forward pass, nothing hidden."""
    ranks, stride = layout.dp * layout.cp, layout.tp * layout.pp
    if layout.zero < FULLY_SHARDED or ranks == 1:
        return {}
    weights = parameters * PRECISIONS[setting.precision].weight_bytes
    gathered = setting.collective("all_gather", weights, ranks, stride)
    return {"weight gathers": gathered * num_micro_batches}


def exposed(
    communication: dict[str, Estimate], overlap_fraction: float, hideable: Estimate
) -> dict[str, Estimate]:
    """Return what of each communication does not hide; at most the hideable compute's length does."""
    whole = sum(part.seconds for part in communication.values())
    if whole == 0:
        return communication
    hidden = min(overlap_fraction * whole, hideable.seconds)
    return {name: part * (1 - hidden / whole) for name, part in communication.items()}
