"""How many parameters a device holds, and what its cache takes for a token."""

import math
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final

from rlplan import parts
from rlplan.layout import WHOLE_MODEL, ModelCut, layers_of_stages
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


def kinds_of_stages(model: ModelArchitecture, cut: ModelCut) -> tuple[tuple[int, ...], ...]:
    """Return how many layers of each kind (`rlplan.models.model.layer_kinds`) each pipeline stage has."""
    return _kinds_of_stages(model, cut.of_stages)


@lru_cache(maxsize=16384)
def _kinds_of_stages(model: ModelArchitecture, cut: ModelCut) -> tuple[tuple[int, ...], ...]:
    kinds = layer_kinds(model)
    layers = layers_of_stages(model.num_layers, cut.pp, cut.first_layers, cut.last_layers)
    bounds = accumulate(layers, initial=0)
    return tuple(kinds.counts(first, last) for first, last in pairwise(bounds))


def fullest_stage(model: ModelArchitecture, stages: int) -> tuple[int, ...]:
    """Return the layers of each kind on the pipeline stage whose layers have most parameters."""
    counts = kinds_of_stages(model, ModelCut(pp=stages))
    if len(counts[0]) == 1:
        return counts[0]
    return max(counts, key=lambda each: layers_parameters(model, each, WHOLE_MODEL))


@lru_cache(maxsize=65536)
def shard_parameters(model: ModelArchitecture, head: Head, cut: ModelCut, stage: int) -> int:
    """Return the parameters of one device of a pipeline stage.

    Norms and routers are copied to every tensor-parallel rank; a tied embedding is copied to the
    last stage when it is not also the first. What turns images into tokens lies with the embedding.
    """
    layers = kinds_of_stages(model, cut)[stage]
    count = layers_parameters(model, layers, cut)
    if stage == 0:
        count += _vocabulary_parameters(model, cut.tp)
        count += -(-(model.vision_parameters or 0) // cut.tp)
    if stage == cut.pp - 1:
        held = head == "lm" and (cut.pp > 1 or not model.tied_embeddings)
        norm = model.hidden_size
        scores = model.head_parameters(head) - norm if head == "scalar" else 0
        count += norm + scores + (_vocabulary_parameters(model, cut.tp) if held else 0)
    return count


def _vocabulary_parameters(model: ModelArchitecture, tp: int) -> int:
    """Return a rank's parameters of the embedding or of a language model's head: whole rows, at most so many."""
    return -(-model.vocab_size // tp) * model.hidden_size


def layers_parameters(model: ModelArchitecture, counts: tuple[int, ...], cut: ModelCut) -> int:
    """Return the parameters of so many layers of each kind on one device of a cut."""
    of_layers = cut.of_layers
    return layer_kinds(model).total(lambda kind: _layer_parameters(kind, of_layers), counts)


def layer_parameters(model: ModelArchitecture, cut: ModelCut) -> int:
    """Return the parameters of one layer, the largest of its model, on one device of a cut."""
    return _layer_parameters(model, cut.of_layers)


@lru_cache(maxsize=16384)
def _layer_parameters(model: ModelArchitecture, cut: ModelCut) -> int:
    return max(parts.layer_parameters(kind, cut) for kind in layer_kinds(model).models)


def layer_adapter_parameters(model: ModelArchitecture, adapter: Adapter, cut: ModelCut) -> int:
    """Return the parameters of the adapters of one layer of a kind on one device of a cut.

    Whatever its operators multiply by and do not hold frozen.
    """
    return _layer_adapter_parameters(model, adapter, cut.of_layers)


@lru_cache(maxsize=16384)
def _layer_adapter_parameters(model: ModelArchitecture, adapter: Adapter, cut: ModelCut) -> int:
    shard = Shard(tp=cut.tp, ep=cut.ep, expert_tp=cut.expert_tp)
    operators = layer_operators(model, shard, MANY_TOKENS, adapter)
    matrices = (each for each in operators if isinstance(each, Gemm) and not each.frozen)
    return sum(each.k * each.n * each.count for each in matrices)


@lru_cache(maxsize=16384)
def adapter_shard(model: ModelArchitecture, adapter: Adapter, cut: ModelCut = WHOLE_MODEL) -> int:
    """Return the parameters of adapters on the device whose layers hold most of them."""
    kinds = layer_kinds(model)
    return max(
        kinds.total(lambda kind: layer_adapter_parameters(kind, adapter, cut), counts)
        for counts in kinds_of_stages(model, cut)
    )


@lru_cache(maxsize=16384)
def expert_parameters(model: ModelArchitecture, cut: ModelCut = WHOLE_MODEL) -> int:
    """Return the parameters of experts on the device that holds most layers; 0 without experts."""
    return max(layers_experts(model, counts, cut) for counts in kinds_of_stages(model, cut))


def layers_experts(model: ModelArchitecture, counts: tuple[int, ...], cut: ModelCut) -> int:
    """Return the parameters of the experts of so many layers of each kind on one device of a cut."""
    return layer_kinds(model).total(lambda kind: parts.expert_parameters(kind, cut), counts)


@lru_cache(maxsize=16384)
def largest_shard(model: ModelArchitecture, head: Head, cut: ModelCut) -> int:
    """Return the parameters of the device that holds most.

    Where all layers are alike it is on the first or on the last stage.
    """
    alike = len(layer_kinds(model).models) == 1 and not cut.first_layers
    stages = {0, cut.pp - 1} if alike else range(cut.pp)
    return max(shard_parameters(model, head, cut, stage) for stage in stages)


@lru_cache(maxsize=16384)
def largest_shard_bytes(
    model: ModelArchitecture, precision: Precision, cut: ModelCut = WHOLE_MODEL
) -> int:
    """Return the bytes of the weights of the device that holds most, as an engine generates with them.

    In a narrow format the layers' are quantised, scales included, and both ends keep a wide one. So little
    of a layer is no matrix that it is counted as if it were.
    """
    value_bytes = PRECISIONS[WIDE[precision]].weight_bytes
    if not is_narrow(precision):
        return largest_shard(model, "lm", cut) * value_bytes
    narrow_bytes = PRECISIONS[precision].weight_bytes + SCALE_BYTES[precision]
    found = []
    for stage, counts in enumerate(kinds_of_stages(model, cut)):
        inside = layers_parameters(model, counts, cut)
        ends = shard_parameters(model, "lm", cut, stage) - inside
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
        for counts in kinds_of_stages(model, ModelCut(pp=pp))
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
