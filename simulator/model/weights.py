"""How many parameters a device holds."""

from functools import lru_cache

from rlplan.model import Head, ModelArchitecture
from simulator.model.shard import layers_of_stages, local_kv_heads


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
    q_size = max(1, model.num_heads // tp) * model.head_dim
    kv_size = local_kv_heads(model, tp) * model.head_dim
    attention = model.hidden_size * (2 * q_size + 2 * kv_size)
    if model.qkv_bias:
        attention += q_size + 2 * kv_size
    if model.qk_norm:
        attention += 2 * model.head_dim
    if model.num_experts:
        router = model.num_experts * model.hidden_size
        experts = model.mlp_parameters - router
        mlp = router + -(-experts // (tp * ep))
    else:
        mlp = -(-model.mlp_parameters // tp)
    return attention + mlp + 2 * model.hidden_size


@lru_cache(maxsize=16384)
def expert_parameters(model: ModelArchitecture, tp: int, pp: int, ep: int = 1) -> int:
    """Return the parameters of experts on the device that holds most layers; 0 without experts."""
    if not model.num_experts:
        return 0
    experts = model.mlp_parameters - model.num_experts * model.hidden_size
    return layers_of_stages(model.num_layers, pp)[0] * -(-experts // (tp * ep))


def largest_shard(model: ModelArchitecture, head: Head, tp: int, pp: int, ep: int = 1) -> int:
    """Return the parameters of the device that holds most: on the first or on the last stage."""
    stages = {0, pp - 1}
    return max(shard_parameters(model, head, tp, pp, stage, ep) for stage in stages)


def cache_bytes_per_token(model: ModelArchitecture, tp: int, pp: int, value_bytes: int) -> int:
    """Return the KV-cache bytes of one token on the device that holds most layers."""
    layers = layers_of_stages(model.num_layers, pp)[0]
    return 2 * layers * local_kv_heads(model, tp) * model.head_dim * value_bytes
