"""How many parameters a device holds, and what its cache takes for a token."""

import math
from functools import lru_cache
from itertools import accumulate, pairwise

from rlplan import parts
from rlplan.adapter import Adapter
from rlplan.model import Head, ModelArchitecture, layer_kinds
from rlplan.operators import Batch, Gemm, Shard
from rlplan.parts import CachedSequence
from rlplan.precision import PRECISIONS, SCALE_BYTES, WIDE, Precision, is_narrow
from simulator.model.operators import layer_operators

# Enough tokens that all experts of a rank are reached.
MANY_TOKENS = Batch(sequences=1, tokens=1 << 24, sequence_tokens=1, head_tokens=0)


def layers_of_stages(num_layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each pipeline stage; what does not divide goes to the first stages.

    The last stage has the output head, so it never gets a layer more than the others.
    """
    each, rest = divmod(num_layers, stages)
    return tuple(each + (1 if stage < rest else 0) for stage in range(stages))


@lru_cache(maxsize=16384)
def kinds_of_stages(model: ModelArchitecture, stages: int) -> tuple[tuple[int, ...], ...]:
    """Return how many layers of each kind (`rlplan.model.layer_kinds`) each pipeline stage has."""
    kinds = layer_kinds(model)
    bounds = accumulate(layers_of_stages(model.num_layers, stages), initial=0)
    return tuple(kinds.counts(first, last) for first, last in pairwise(bounds))


def fullest_stage(model: ModelArchitecture, stages: int) -> tuple[int, ...]:
    """Return the layers of each kind on the pipeline stage whose layers have most parameters."""
    counts = kinds_of_stages(model, stages)
    if len(counts[0]) == 1:
        return counts[0]
    return max(counts, key=lambda each: layers_parameters(model, each, 1, 1))


@lru_cache(maxsize=65536)
def shard_parameters(
    model: ModelArchitecture, head: Head, tp: int, pp: int, stage: int, ep: int = 1
) -> int:
    """Return the parameters of one device of a pipeline stage.

    Norms and routers are copied to every tensor-parallel rank; a tied embedding is copied to the
    last stage when it is not also the first. What turns images into tokens lies with the embedding.
    """
    count = layers_parameters(model, kinds_of_stages(model, pp)[stage], tp, ep)
    if stage == 0:
        count += -(-(model.embedding_parameters + (model.vision_parameters or 0)) // tp)
    if stage == pp - 1:
        norm = model.hidden_size
        matrix = model.head_parameters(head) - norm
        if head == "lm" and model.tied_embeddings and pp > 1:
            matrix = model.embedding_parameters
        count += norm + (-(-matrix // tp) if head == "lm" else matrix)
    return count


def layers_parameters(model: ModelArchitecture, counts: tuple[int, ...], tp: int, ep: int) -> int:
    """Return the parameters of so many layers of each kind on one of tp x ep devices."""
    kinds = layer_kinds(model).models
    return sum(
        count * layer_parameters(kind, tp, ep) for kind, count in zip(kinds, counts, strict=True)
    )


@lru_cache(maxsize=16384)
def layer_parameters(model: ModelArchitecture, tp: int, ep: int = 1) -> int:
    """Return the parameters of one layer, the largest of its model, on one of tp x ep devices."""
    return max(parts.layer_parameters(kind, tp, ep) for kind in layer_kinds(model).models)


@lru_cache(maxsize=16384)
def layer_adapter_parameters(
    model: ModelArchitecture, adapter: Adapter, tp: int = 1, ep: int = 1
) -> int:
    """Return the parameters of the adapters of one layer of a kind on one of tp x ep devices.

    Whatever its operators multiply by and do not hold frozen.
    """
    operators = layer_operators(model, Shard(tp=tp, ep=ep), MANY_TOKENS, adapter)
    matrices = (each for each in operators if isinstance(each, Gemm) and not each.frozen)
    return sum(each.k * each.n * each.count for each in matrices)


@lru_cache(maxsize=16384)
def adapter_shard(
    model: ModelArchitecture, adapter: Adapter, tp: int, pp: int = 1, ep: int = 1
) -> int:
    """Return the parameters of adapters on the device whose layers hold most of them."""
    each = [layer_adapter_parameters(kind, adapter, tp, ep) for kind in layer_kinds(model).models]
    return max(
        sum(count * size for count, size in zip(counts, each, strict=True))
        for counts in kinds_of_stages(model, pp)
    )


@lru_cache(maxsize=16384)
def expert_parameters(model: ModelArchitecture, tp: int, pp: int, ep: int = 1) -> int:
    """Return the parameters of experts on the device that holds most layers; 0 without experts."""
    kinds = layer_kinds(model).models
    each = [
        sum(part.expert_parameters(kind, tp, ep) for part in parts.parts_of(kind)) for kind in kinds
    ]
    return max(
        sum(count * size for count, size in zip(counts, each, strict=True))
        for counts in kinds_of_stages(model, pp)
    )


@lru_cache(maxsize=16384)
def largest_shard(model: ModelArchitecture, head: Head, tp: int, pp: int, ep: int = 1) -> int:
    """Return the parameters of the device that holds most.

    Where all layers are alike it is on the first or on the last stage.
    """
    alike = len(layer_kinds(model).models) == 1
    stages = {0, pp - 1} if alike else range(pp)
    return max(shard_parameters(model, head, tp, pp, stage, ep) for stage in stages)


@lru_cache(maxsize=16384)
def largest_shard_bytes(
    model: ModelArchitecture, tp: int, pp: int, ep: int, precision: Precision
) -> int:
    """Return the bytes of the weights of the device that holds most, as an engine generates with them.

    In a narrow format the layers' are quantised, scales included, and both ends keep a wide one. So little
    of a layer is no matrix that it is counted as if it were.
    """
    value_bytes = PRECISIONS[WIDE[precision]].weight_bytes
    if not is_narrow(precision):
        return largest_shard(model, "lm", tp, pp, ep) * value_bytes
    narrow_bytes = PRECISIONS[precision].weight_bytes + SCALE_BYTES[precision]
    found = []
    for stage, counts in enumerate(kinds_of_stages(model, pp)):
        inside = layers_parameters(model, counts, tp, ep)
        ends = shard_parameters(model, "lm", tp, pp, stage, ep) - inside
        found.append(math.ceil(inside * narrow_bytes) + ends * value_bytes)
    return max(found)


@lru_cache(maxsize=16384)
def cached_sequence(
    model: ModelArchitecture, tp: int, pp: int, value_bytes: int, longest_tokens: int
) -> CachedSequence:
    """Return what the cache holds of a sequence on the device that holds most of the longest one."""
    each = [
        parts.cached_sequence(kind, tp, value_bytes, longest_tokens)
        for kind in layer_kinds(model).models
    ]
    stages = (
        CachedSequence(
            sum(count * one.token_bytes for count, one in zip(counts, each, strict=True)),
            sum(count * one.fixed_bytes for count, one in zip(counts, each, strict=True)),
        )
        for counts in kinds_of_stages(model, pp)
    )
    return max(stages, key=lambda held: held.token_bytes * longest_tokens + held.fixed_bytes)
