"""How many parameters a device holds, and what its cache takes for a token."""

import math
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from rlplan import parts
from rlplan.layout import layers_of_stages
from rlplan.models.adapter import Adapter
from rlplan.models.model import Head, ModelArchitecture, layer_kinds
from rlplan.models.operators import Batch, Gemm, Shard
from rlplan.models.precision import PRECISIONS, SCALE_BYTES, WIDE, Precision, is_narrow
from rlplan.parts import CachedSequence
from rlplan.simulator.model.operators import layer_operators

# Four projections and two norms; mixers of other kinds have about as many.
ATTENTION_TENSORS: Final = 6
# Enough tokens that all experts of a rank are reached.
MANY_TOKENS = Batch(sequences=1, tokens=1 << 24, sequence_tokens=1, head_tokens=0)


class CutDetails(NamedTuple):
    """Hold what a cut of a model has beside its sizes.

    Attributes:
        expert_tp: Ranks that each expert's width is cut over; 0 is the tensor-parallel size.
        first_layers: Layers of the first pipeline stage; 0 shares layers out evenly.
        last_layers: Layers of the last pipeline stage; 0 shares layers out evenly.
    """

    expert_tp: int = 0
    first_layers: int = 0
    last_layers: int = 0


EVEN: Final = CutDetails()


@lru_cache(maxsize=16384)
def kinds_of_stages(
    model: ModelArchitecture, stages: int, details: CutDetails = EVEN
) -> tuple[tuple[int, ...], ...]:
    """Return how many layers of each kind (`rlplan.models.model.layer_kinds`) each pipeline stage has."""
    kinds = layer_kinds(model)
    _, first, last = details
    layers = layers_of_stages(model.num_layers, stages, first, last)
    bounds = accumulate(layers, initial=0)
    return tuple(kinds.counts(first, last) for first, last in pairwise(bounds))


def fullest_stage(model: ModelArchitecture, stages: int) -> tuple[int, ...]:
    """Return the layers of each kind on the pipeline stage whose layers have most parameters."""
    counts = kinds_of_stages(model, stages)
    if len(counts[0]) == 1:
        return counts[0]
    return max(counts, key=lambda each: layers_parameters(model, each, 1, 1, 0))


@lru_cache(maxsize=65536)
def shard_parameters(
    model: ModelArchitecture,
    head: Head,
    tp: int,
    pp: int,
    stage: int,
    ep: int = 1,
    details: CutDetails = EVEN,
) -> int:
    """Return the parameters of one device of a pipeline stage.

    Norms and routers are copied to every tensor-parallel rank; a tied embedding is copied to the
    last stage when it is not also the first. What turns images into tokens lies with the embedding.
    """
    layers = kinds_of_stages(model, pp, details)[stage]
    count = layers_parameters(model, layers, tp, ep, details.expert_tp)
    if stage == 0:
        count += _vocabulary_parameters(model, tp) + -(-(model.vision_parameters or 0) // tp)
    if stage == pp - 1:
        held = head == "lm" and (pp > 1 or not model.tied_embeddings)
        norm = model.hidden_size
        scores = model.head_parameters(head) - norm if head == "scalar" else 0
        count += norm + scores + (_vocabulary_parameters(model, tp) if held else 0)
    return count


def _vocabulary_parameters(model: ModelArchitecture, tp: int) -> int:
    """Return a rank's parameters of the embedding or of a language model's head: whole rows, at most so many."""
    return -(-model.vocab_size // tp) * model.hidden_size


def layers_parameters(
    model: ModelArchitecture, counts: tuple[int, ...], tp: int, ep: int, expert_tp: int
) -> int:
    """Return the parameters of so many layers of each kind on one of tp x ep devices."""
    return layer_kinds(model).total(lambda kind: layer_parameters(kind, tp, ep, expert_tp), counts)


@lru_cache(maxsize=16384)
def layer_parameters(model: ModelArchitecture, tp: int, ep: int = 1, expert_tp: int = 0) -> int:
    """Return the parameters of one layer, the largest of its model, on one device of a cut."""
    kinds = layer_kinds(model).models
    return max(parts.layer_parameters(kind, tp, ep, expert_tp) for kind in kinds)


@lru_cache(maxsize=16384)
def layer_adapter_parameters(
    model: ModelArchitecture, adapter: Adapter, tp: int = 1, ep: int = 1, expert_tp: int = 0
) -> int:
    """Return the parameters of the adapters of one layer of a kind on one of tp x ep devices.

    Whatever its operators multiply by and do not hold frozen.
    """
    operators = layer_operators(
        model, Shard(tp=tp, ep=ep, expert_tp=expert_tp), MANY_TOKENS, adapter
    )
    matrices = (each for each in operators if isinstance(each, Gemm) and not each.frozen)
    return sum(each.k * each.n * each.count for each in matrices)


@lru_cache(maxsize=16384)
def adapter_shard(
    model: ModelArchitecture,
    adapter: Adapter,
    tp: int,
    pp: int = 1,
    ep: int = 1,
    details: CutDetails = EVEN,
) -> int:
    """Return the parameters of adapters on the device whose layers hold most of them."""
    sizes, kinds = (adapter, tp, ep, details.expert_tp), layer_kinds(model)
    return max(
        kinds.total(lambda kind: layer_adapter_parameters(kind, *sizes), counts)
        for counts in kinds_of_stages(model, pp, details)
    )


@lru_cache(maxsize=16384)
def expert_parameters(
    model: ModelArchitecture, tp: int, pp: int, ep: int = 1, details: CutDetails = EVEN
) -> int:
    """Return the parameters of experts on the device that holds most layers; 0 without experts."""
    stages = kinds_of_stages(model, pp, details)
    return max(layers_experts(model, counts, tp, ep, details.expert_tp) for counts in stages)


def layers_experts(
    model: ModelArchitecture, counts: tuple[int, ...], tp: int, ep: int, expert_tp: int
) -> int:
    """Return the parameters of the experts of so many layers of each kind on one device of a cut."""
    return layer_kinds(model).total(
        lambda kind: parts.expert_parameters(kind, expert_tp or tp, ep), counts
    )


@lru_cache(maxsize=16384)
def largest_shard(
    model: ModelArchitecture,
    head: Head,
    tp: int,
    pp: int,
    ep: int = 1,
    details: CutDetails = EVEN,
) -> int:
    """Return the parameters of the device that holds most.

    Where all layers are alike it is on the first or on the last stage.
    """
    alike = len(layer_kinds(model).models) == 1 and not details.first_layers
    stages = {0, pp - 1} if alike else range(pp)
    return max(shard_parameters(model, head, tp, pp, stage, ep, details) for stage in stages)


@lru_cache(maxsize=16384)
def largest_shard_bytes(
    model: ModelArchitecture,
    tp: int,
    pp: int,
    ep: int,
    details: CutDetails = EVEN,
    *,
    precision: Precision,
) -> int:
    """Return the bytes of the weights of the device that holds most, as an engine generates with them.

    In a narrow format the layers' are quantised, scales included, and both ends keep a wide one. So little
    of a layer is no matrix that it is counted as if it were.
    """
    value_bytes = PRECISIONS[WIDE[precision]].weight_bytes
    if not is_narrow(precision):
        return largest_shard(model, "lm", tp, pp, ep, details) * value_bytes
    narrow_bytes = PRECISIONS[precision].weight_bytes + SCALE_BYTES[precision]
    found = []
    for stage, counts in enumerate(kinds_of_stages(model, pp, details)):
        inside = layers_parameters(model, counts, tp, ep, details.expert_tp)
        ends = shard_parameters(model, "lm", tp, pp, stage, ep, details) - inside
        found.append(math.ceil(inside * narrow_bytes) + ends * value_bytes)
    return max(found)


@lru_cache(maxsize=16384)
def cached_sequence(
    model: ModelArchitecture, tp: int, pp: int, value_bytes: int, longest_tokens: int
) -> CachedSequence:
    """Return what the cache holds of a sequence on the device that holds most of the longest one."""
    kinds, sizes = layer_kinds(model), (tp, value_bytes, longest_tokens)
    stages = (
        CachedSequence(
            kinds.total(lambda kind: parts.cached_sequence(kind, *sizes).token_bytes, counts),
            kinds.total(lambda kind: parts.cached_sequence(kind, *sizes).fixed_bytes, counts),
        )
        for counts in kinds_of_stages(model, pp)
    )
    return max(stages, key=lambda held: held.token_bytes * longest_tokens + held.fixed_bytes)


@lru_cache(maxsize=1024)
def num_tensors(model: ModelArchitecture) -> int:
    """Return the tensors of a model as a checkpoint names them: every expert's matrices are their own."""
    return layer_kinds(model).total(_layer_tensors) + (2 if model.tied_embeddings else 3)


def _layer_tensors(model: ModelArchitecture) -> int:
    """Return the tensors of a layer: projections with their biases, norms, matrices of each network."""
    each = 3 if model.gated_mlp else 2
    attention = ATTENTION_TENSORS + (3 if model.qkv_bias else 0) + (2 if model.qk_norm else 0)
    if model.feed_forward_part != "experts":
        return attention + each
    details = model.expert_details
    shared = each if details is not None and details.shared_ffn_size else 0
    biases = 1 if details is not None and details.router_bias else 0
    return attention + model.num_experts * each + shared + 1 + biases
