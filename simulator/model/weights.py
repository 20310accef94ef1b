"""How many parameters a device holds, and what its cache takes for a token."""

from functools import lru_cache

from rlplan import parts
from rlplan.model import Head, ModelArchitecture


def layers_of_stages(num_layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each pipeline stage; what does not divide goes to the first stages.

    The last stage has the output head, so it never gets a layer more than the others.
    """
    each, rest = divmod(num_layers, stages)
    return tuple(each + (1 if stage < rest else 0) for stage in range(stages))


@lru_cache(maxsize=65536)
def shard_parameters(
    model: ModelArchitecture, head: Head, tp: int, pp: int, stage: int, ep: int = 1
) -> int:
    """Return the parameters of one device of a pipeline stage.

    Norms and routers are copied to every tensor-parallel rank; a tied embedding is copied to the
    last stage when it is not also the first.
    """
    count = layers_of_stages(model.num_layers, pp)[stage] * layer_parameters(model, tp, ep)
    if stage == 0:
        count += -(-model.embedding_parameters // tp)
    if stage == pp - 1:
        norm = model.hidden_size
        matrix = model.head_parameters(head) - norm
        if head == "lm" and model.tied_embeddings and pp > 1:
            matrix = model.embedding_parameters
        count += norm + (-(-matrix // tp) if head == "lm" else matrix)
    return count


@lru_cache(maxsize=16384)
def layer_parameters(model: ModelArchitecture, tp: int, ep: int = 1) -> int:
    """Return the parameters of one layer on one of tp x ep devices."""
    return parts.layer_parameters(model, tp, ep)


@lru_cache(maxsize=16384)
def expert_parameters(model: ModelArchitecture, tp: int, pp: int, ep: int = 1) -> int:
    """Return the parameters of experts on the device that holds most layers; 0 without experts."""
    each = sum(part.expert_parameters(model, tp, ep) for part in parts.parts_of(model))
    return layers_of_stages(model.num_layers, pp)[0] * each


def largest_shard(model: ModelArchitecture, head: Head, tp: int, pp: int, ep: int = 1) -> int:
    """Return the parameters of the device that holds most: on the first or on the last stage."""
    stages = {0, pp - 1}
    return max(shard_parameters(model, head, tp, pp, stage, ep) for stage in stages)


def cache_bytes_per_token(model: ModelArchitecture, tp: int, pp: int, value_bytes: int) -> int:
    """Return the KV-cache bytes of one token on the device that holds most layers."""
    layers = layers_of_stages(model.num_layers, pp)[0]
    return layers * parts.attention_of(model).cached_values_per_token(model, tp) * value_bytes
