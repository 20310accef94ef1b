"""A mixture of experts: every token goes to its top-k of them; expert-parallel ranks share them out."""

from rlplan.model import ModelArchitecture
from rlplan.operators import Batch, Collective, Elementwise, Gemm, Operators, Shard
from rlplan.parts.dense_mlp import feed_forward, inner_tensors, matrices


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the router's parameters, which every rank has, and those of the rank's experts."""
    return model.num_experts * model.hidden_size + expert_parameters(model, tp, ep)


def expert_parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters of the rank's experts."""
    each = matrices(model) * model.hidden_size * model.moe_ffn_size
    return -(-model.num_experts * each // (tp * ep))


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Route every token to its top-k experts; loads are balanced, as the routers' losses aim for.

    Of E experts, T tokens with k choices each reach E (1 - (1 - k/E)^T) on average, and only those
    have their weights read.
    """
    del batch
    top_k, experts = model.experts_per_token, model.num_experts
    routed = tokens * shard.ep  # an expert's tokens come from all ranks of its group
    reached = experts * (1 - (1 - top_k / experts) ** routed)
    local = max(1, min(round(reached / shard.ep), experts // shard.ep))
    each = -(-routed * top_k // (local * shard.ep))
    width = -(-model.moe_ffn_size // shard.tp)
    sorted_bytes = tokens * top_k * model.hidden_size * shard.value_bytes
    exchange: Operators = ()
    if shard.ep > 1:
        # An all-to-all of B bytes a rank sends (n - 1) / n B from each, as an all-gather of B does.
        exchange = (Collective("expert exchange", "all_gather", sorted_bytes, "ep"),)
    return (
        Gemm("router", tokens, model.hidden_size, experts),
        Elementwise("dispatch", 2 * sorted_bytes, kernels=2),
        *exchange,
        *feed_forward(model, each, width, shard.value_bytes, local),
        *exchange,
        Elementwise("combine", 2 * sorted_bytes),
    )


def kept_bytes(
    model: ModelArchitecture,
    shard: Shard,
    tokens: int,
    spread_tokens: int,
    sequence_tokens: int,
    *,
    fused_attention: bool,
    keeps_products: bool,
) -> int:
    """Return the bytes of the experts' inner activations and of the tokens dispatched to them."""
    del spread_tokens, sequence_tokens, fused_attention
    routed, width = tokens * model.experts_per_token, -(-model.moe_ffn_size // shard.tp)
    tensors = inner_tensors(model, keeps_products=keeps_products)
    return routed * (tensors * width + model.hidden_size) * shard.value_bytes
