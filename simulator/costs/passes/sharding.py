"""What data-parallel ranks exchange because they share a model's states, and what of it is hidden."""

from collections.abc import Mapping

import numpy as np

from rlplan.estimate import ZERO, Estimate
from rlplan.models.operators import CollectiveKind
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.simulator.costs.passes.estimates import Estimates, estimates_by
from rlplan.simulator.costs.passes.pipeline import MicroBatches
from rlplan.simulator.costs.pricing import Setting, setting_of
from rlplan.simulator.placed.task import PlacedTask, PlacedTasks

# Columns that decide which states a rank holds, and with whom it shares them.
STATE_COLUMNS = (
    "tp",
    "pp",
    "ep",
    "expert_tp",
    "first_stage_layers",
    "last_stage_layers",
    "dp",
    "cp",
    "zero",
    "shard_ranks",
)


def gradient_exchanges(table: PlacedTasks, batches: MicroBatches) -> dict[str, Estimates]:
    """Return seconds by cause of what data-parallel ranks exchange in one update, nothing hidden.

    ZeRO stages as Rajbhandari et al. 2020 (arXiv:1910.02054), section 7: 0 all-reduces gradients;
    1 reduce-scatters them and gathers the updated weights; from 2 on gradients are kept sharded, so
    every micro-batch's are reduced; 3 also gathers the weights for each forward and each backward.
    """
    zero, count = table.columns.zero, batches.total_count
    once = estimates_by(table, STATE_COLUMNS, gradient_exchange)
    return {
        "gradient reduction": once[0] * np.where(zero > 1, count, 1),
        "weight gathers": once[1] * np.where(zero == FULLY_SHARDED, 2 * count, 1),
    }


def gradient_exchange(placed: PlacedTask) -> tuple[Estimate, Estimate]:
    """Return one reduction of gradients, and one gather of weights.

    Groups that shard states among themselves (hybrid sharding; Zhao et al. 2023, arXiv:2304.11277, section
    3.2.2) all-reduce what each rank has of the gradients with the other groups.
    """
    layout, setting = placed.layout, setting_of(placed)
    ranks = placed.state_ranks
    groups = layout.dp * layout.cp // ranks
    if ranks * groups == 1:
        return ZERO, ZERO
    sizes = placed.formats
    wire_bytes = setting.kernels.gradient_wire_bytes or sizes.gradient_bytes
    gradients = placed.trained_parameters * wire_bytes
    gathered = placed.trained_parameters  # what was stepped; frozen weights are where they were
    if layout.zero == FULLY_SHARDED:
        gathered = placed.parameters + placed.adapter_parameters
    weights = gathered * sizes.weight_bytes
    if layout.zero == 0:
        return _among_copies(placed, setting, "all_reduce", gradients), ZERO
    reduced = _among_copies(placed, setting, "reduce_scatter", gradients)
    if groups > 1:
        stride = layout.tp * setting.block_stages * ranks
        reduced = reduced + setting.collective("all_reduce", gradients / ranks, groups, stride)
    return reduced, _among_copies(placed, setting, "all_gather", weights)


def _among_copies(
    placed: PlacedTask, setting: Setting, kind: CollectiveKind, num_bytes: float
) -> Estimate:
    """Return seconds of a collective of a device's states: fewer ranks have copies of its experts."""
    layout, ranks = placed.layout, placed.state_ranks
    stride, copies = layout.tp * setting.block_stages, placed.expert_copies(ranks)
    if copies == ranks or placed.adapter is not None:
        return setting.collective(kind, num_bytes, ranks, stride)
    experts = num_bytes * placed.expert_parameters / placed.parameters
    rest = setting.collective(kind, num_bytes - experts, ranks, stride)
    apart = max(1, stride * layout.expert_ranks // layout.tp)
    return rest + setting.collective(kind, experts, copies, apart)


def weight_gathers(table: PlacedTasks, batches: MicroBatches) -> dict[str, Estimates]:
    """Return seconds of gathering fully sharded weights for each forward pass, nothing hidden."""
    gathered = estimates_by(table, STATE_COLUMNS, _weight_gather)
    return {"weight gathers": gathered * batches.total_count}


def _weight_gather(placed: PlacedTask) -> Estimate:
    layout, ranks = placed.layout, placed.state_ranks
    if layout.zero < FULLY_SHARDED or ranks == 1:
        return ZERO
    weights = (placed.parameters + placed.adapter_parameters) * placed.formats.weight_bytes
    return _among_copies(placed, setting_of(placed), "all_gather", weights)


def exposed(
    exchanges: Mapping[str, Estimates], overlap_fraction: float, hideable: Estimates
) -> dict[str, Estimates]:
    """Return what of each exchange does not hide; at most the hideable compute's length does."""
    whole = sum(part.seconds for part in exchanges.values())
    hidden = np.minimum(overlap_fraction * whole, hideable.seconds)
    left = 1 - np.divide(hidden, whole, out=np.zeros_like(hidden), where=whole > 0)
    return {name: part * left for name, part in exchanges.items()}
