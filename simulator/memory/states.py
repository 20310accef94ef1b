"""What a stage keeps of its model's states: weights, gradients and what an optimizer steps, by format."""

from dataclasses import dataclass

import numpy as np

from rlplan.models import PRECISIONS, layer_kinds
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.simulator.model import (
    kinds_of_stages,
    layer_adapter_parameters,
    layer_parameters,
    layers_experts,
    layers_parameters,
    shard_parameters,
)
from rlplan.simulator.placed import Flags, Floats, Ints, PlacedTask, PlacedTasks, whole

# Layers whose weights ZeRO stage 3 holds whole at a time: the running one and the prefetched one.
GATHERED_LAYERS = 2

CUT_COLUMNS = ("tp", "pp", "ep", "expert_tp", "first_stage_layers", "last_stage_layers")

GRADIENTS_SHARDED = 2  # the ZeRO stage from which on gradients are kept sharded


@dataclass(frozen=True, slots=True, eq=False)
class StageStates:
    """Hold the parameters of one GPU of a pipeline stage in each layout.

    Attributes:
        stage: Its place. Shape (layouts,), as all but `layers`.
        experts: Those of them that belong to experts, of which fewer ranks have copies.
        trained: Those of them that have gradients; with adapters these, beside frozen parameters.
        ends: Parameters outside its layers: embedding, head, last norm.
        layer: Parameters of the model's largest layer.
        trained_ends, trained_layer: Those of both that have gradients.
        layers: How many layers of each kind it has. Shape (kinds, layouts).
    """

    stage: Ints
    parameters: Ints
    experts: Ints
    trained: Ints
    ends: Ints
    layer: Ints
    trained_ends: Ints
    trained_layer: Ints
    layers: Ints

    def weights(self, table: PlacedTasks) -> Ints:
        """Return the bytes of the weights that it keeps."""
        columns = table.columns
        kept = self._shard(table, self.parameters, columns.state_ranks)
        sharded = kept * table.any.stored.weight_bytes
        whole_bytes = self.parameters * table.any.formats.weight_bytes
        return np.where(columns.zero == FULLY_SHARDED, sharded, whole_bytes)

    def gathered(self, table: PlacedTasks) -> Ints:
        """Return the bytes of what lies there whole for a while: some layers, and FSDP's embedding and head.

        The module that wraps the layers holds embedding and head, which stay gathered until its own
        backward pass is done (PyTorch, torch.distributed.fsdp, `fully_shard` of a root module).
        """
        ends = self.ends if table.any.engine.memory.root_stays_whole else 0
        held = GATHERED_LAYERS * self.layer + ends
        return np.where(gathers_weights(table), held * table.any.formats.weight_bytes, 0)

    def quantised(self, table: PlacedTasks) -> Ints:
        """Return the bytes of narrow copies of its layers for products, or of those that are gathered.

        Training has transposed ones as well: tensor cores take narrow inputs row by row only (Transformer
        Engine documentation, "Using FP8", weights that are cached over micro-batches).
        """
        held = np.where(
            gathers_weights(table), GATHERED_LAYERS * self.layer, self.parameters - self.ends
        )
        copies = 2 if table.any.trains else 1
        return np.asarray(held * copies * PRECISIONS[table.any.precision].weight_bytes)

    def unreduced(self, table: PlacedTasks) -> Ints:
        """Return the bytes of whole gradients: of a layer while it is reduced, of embedding and head.

        They come in the format of the products; those of a layer are copied to the format in which
        they are reduced.
        """
        formats, columns = table.any.formats, table.columns
        wire_bytes = table.any.engine.kernels.gradient_wire_bytes
        copy = self.trained_layer * (wire_bytes or table.any.stored.gradient_bytes)
        ends = self.trained_ends if table.any.engine.memory.root_stays_whole else 0
        held = (self.trained_layer + ends) * formats.weight_bytes + copy
        reduces = (columns.zero >= GRADIENTS_SHARDED) & (
            (columns.state_ranks > 1) | table.any.casts_weights
        )
        return np.where(reduces, held, 0)

    def unreduced_in_loss(self, table: PlacedTasks) -> Ints:
        """Return the bytes of whole gradients while the loss runs: of the head, which is reduced with its module."""
        ends = self.trained_ends if table.any.engine.memory.root_stays_whole else 0
        return np.minimum(self.unreduced(table), ends * table.any.formats.weight_bytes)

    def stepped(self, table: PlacedTasks) -> Ints:
        """Return the parameters that its optimizer steps."""
        ranks = np.where(table.columns.zero > 0, table.columns.state_ranks, 1)
        return self._shard(table, self.trained, ranks)

    def _shard(self, table: PlacedTasks, parameters: Ints, ranks: Ints) -> Ints:
        """Return the parameters that each of so many ranks keeps of those of one GPU.

        Expert parallelism takes ranks that would have copies: an expert's states are shared out among
        so many fewer.
        """
        columns = table.columns
        spread = np.minimum(columns.expert_spread, ranks)
        experts = self.experts if parameters is self.parameters else 0  # adapters are of no expert
        return whole(np.ceil((parameters + experts * (spread - 1)) / ranks))

    def copied(self, table: PlacedTasks) -> Ints:
        """Return the bytes of weights that are stepped beside whole ones."""
        columns = table.columns
        copies = (columns.zero == GRADIENTS_SHARDED) & (columns.state_ranks > 1)
        if table.any.casts_weights:
            copies = columns.zero < FULLY_SHARDED
        return np.where(copies, self.stepped(table) * table.any.stored.weight_bytes, 0)


def gathers_weights(table: PlacedTasks) -> Flags:
    """Tell where weights are gathered from shards, or copied to the format of the products."""
    alone = table.columns.state_ranks == 1
    copies = table.any.trains and table.any.casts_weights
    return np.asarray((table.columns.zero == FULLY_SHARDED) & (~alone | copies), dtype=np.bool_)


def states_of_stages(table: PlacedTasks, kinds: int) -> list[StageStates]:
    """Return each stage that may be the fullest of each layout.

    Args:
        kinds: Kinds of layers that the model has.
    """
    found = whole(table.by(CUT_COLUMNS, _stage_shards, on_any_site=True)).reshape(
        -1, 5 + kinds, len(table)
    )
    adapters = None
    if table.any.adapter is not None:
        adapters = whole(table.by(("tp", "ep", "expert_tp"), _layer_adapters))
    return [_stage_states(shard, adapters) for shard in found]


def _stage_states(shard: Ints, adapters: Ints | None) -> StageStates:
    """Return a stage's parameters, those that are trained among them.

    Args:
        shard: As `_stage_shards` has one stage. Shape (5 + kinds, layouts).
        adapters: Parameters of the adapters of a layer of each kind; None where the model is trained.
            Shape (kinds, layouts), as `layers`.
    """
    stage, parameters, experts, ends, layer = shard[:5]
    layers = shard[5:]
    trained, trained_ends, trained_layer = parameters, ends, layer
    if adapters is not None:
        trained, trained_ends = (layers * adapters).sum(axis=0), np.zeros_like(ends)
        trained_layer = adapters.max(axis=0)
    return StageStates(
        stage, parameters, experts, trained, ends, layer, trained_ends, trained_layer, layers
    )


def _layer_adapters(placed: PlacedTask) -> tuple[int, ...]:
    """Return the parameters of the adapters of one layer of each kind."""
    adapter = placed.adapter
    assert adapter is not None, "only tasks with adapters are asked"
    kinds = layer_kinds(placed.model).models
    return tuple(layer_adapter_parameters(kind, adapter, placed.cut) for kind in kinds)


def _stage_shards(placed: PlacedTask) -> Floats:
    """Return each stage that may be the fullest: place, parameters, experts', ends', a layer's, layers of each kind.

    Returns:
        Shape (stages * (5 + kinds),).
    """
    model, cut = placed.model, placed.cut
    counts = kinds_of_stages(model, cut)
    shards = [shard_parameters(model, placed.task.head, cut, stage) for stage in range(cut.pp)]
    layer = layer_parameters(model, cut)
    stages = [0, cut.pp - 1]
    if len(counts[0]) > 1 or cut.first_layers:
        stages.append(shards.index(max(shards)))
    held = [
        (
            stage,
            shards[stage],
            layers_experts(model, counts[stage], cut),
            shards[stage] - layers_parameters(model, counts[stage], cut),
            layer,
            *counts[stage],
        )
        for stage in stages
    ]
    return np.array(held, dtype=np.float64).ravel()
