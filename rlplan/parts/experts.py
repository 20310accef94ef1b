"""A mixture of experts: every token goes to its top-k of them; expert-parallel ranks share them out.

Shared experts are one network beside them that every token passes (DeepSeekMoE, arXiv:2401.06066, section 3.2).
How a router chooses, in groups or not, costs nothing.
"""

import math

from rlplan.estimate import largest_normal
from rlplan.models import (
    Batch,
    Collective,
    Elementwise,
    ExpertDetails,
    Gemm,
    KeptBatch,
    ModelArchitecture,
    Operators,
    Shard,
)
from rlplan.parts.dense_mlp import feed_forward, inner_tensors, matrices

NO_DETAILS = ExpertDetails()

# Standard deviation of what experts of a layer are chosen for, over its mean. Of DeepSeek-V3's, the most popular
# fifth takes 30 to 40 % of the tokens of CNN DailyMail and OpenOrca (aiconfigurator 0.12, NVIDIA,
# docs/POWER_LAW_DISTRIBUTION.md): so has a log-normal distribution whose spread is a half.
POPULARITY_SPREAD = 0.75
# Rows of the experts' inputs' width that each choice of a token keeps where nothing is fused, beside the weighted output,
# whose sum asks for it: input and output (transformers 5.17, models/qwen3_moe; torch's derivative of index_add).
UNFUSED_ROWS = 2


def details_of(model: ModelArchitecture) -> ExpertDetails:
    """Return what a model's experts have beside a router and their matrices."""
    return model.expert_details or NO_DETAILS


def has_shared(model: ModelArchitecture) -> bool:
    """Tell whether a network that every token passes lies beside the experts."""
    return details_of(model).shared_ffn_size > 0


def input_size(model: ModelArchitecture) -> int:
    """Return the width of what an expert is given."""
    return details_of(model).latent_size or model.hidden_size


def computed_per_token(model: ModelArchitecture) -> int:
    """Return how many of a token's experts compute, on average, if experts that compute nothing are chosen as often as others."""
    every = model.num_experts + details_of(model).idle_experts
    return max(1, round(model.experts_per_token * model.num_experts / every))


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters of router and projections, which every rank has, of experts and of shared ones."""
    details = details_of(model)
    routed = model.num_experts + details.idle_experts
    count = routed * (model.hidden_size + (1 if details.router_bias else 0))
    count += model.hidden_size * (details.extra_norms + (1 if details.shared_gate else 0))
    count += 2 * model.hidden_size * (details.latent_size or 0)
    count += input_size(model) if details.latent_norm else 0
    shared = matrices(model) * model.hidden_size * details.shared_ffn_size
    return count + -(-shared // tp) + expert_parameters(model, tp, ep)


def expert_parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters of the rank's experts."""
    each = matrices(model) * input_size(model) * model.moe_ffn_size
    if details_of(model).expert_bias:
        each += (matrices(model) - 1) * model.moe_ffn_size + input_size(model)
    return -(-model.num_experts * each // (tp * ep))


def reached(experts: int, top_k: int, tokens: int, spread: float = POPULARITY_SPREAD) -> float:
    """Return how many experts get at least one of so many tokens, on average.

    Of popularities with a gamma distribution around their mean, of spread s: with x tokens an expert on
    average, a share of (1 + s^2 x)^(-1 / s^2) gets none; e^-x where all are alike.
    """
    share = tokens * top_k / experts
    variance = spread**2
    missed = math.log1p(variance * share) / variance if variance else share
    return experts * -math.expm1(-missed)


def busiest_rank(experts: int, ranks: int, spread: float = POPULARITY_SPREAD) -> float:
    """Return the tokens of the rank whose experts get most of them, over the mean rank's.

    A rank's tokens are the sum of its experts'.
    """
    return 1 + largest_normal(ranks) * spread / math.sqrt(experts / ranks)


def most_reached(
    experts: int, top_k: int, tokens: int, ranks: int, spread: float = POPULARITY_SPREAD
) -> float:
    """Return how many experts get a token on the rank with most of those, each reached or not by itself."""
    share = reached(experts, top_k, tokens, spread) / experts
    held = experts / ranks
    return min(held, held * share + largest_normal(ranks) * math.sqrt(held * share * (1 - share)))


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Route every token to its top-k experts, some of which are more popular than others.

    The ranks of an expert-parallel group wait for the one whose experts get most tokens; only experts
    that get any have their weights read.
    """
    del batch
    details = details_of(model)
    top_k, experts, size = computed_per_token(model), model.num_experts, input_size(model)
    # Ranks of a tensor-parallel group that cut no expert share out its tokens, or all have them and compute their experts' part.
    own = -(-tokens * shard.expert_width // shard.tp)
    routed = own * shard.ep  # an expert's tokens come from all ranks of its group
    if shard.sums_experts:
        routed = tokens
    told = 0.0 if shard.experts_in_turn else shard.popularity_spread
    spread = POPULARITY_SPREAD if told is None else told
    uneven = busiest_rank(experts, shard.ep, spread)
    most = most_reached(experts, top_k, routed, shard.ep, spread)
    local = max(1, min(round(most), experts // shard.ep))
    each = -(-round(routed * top_k * uneven) // (local * shard.ep))
    width = -(-model.moe_ffn_size // shard.expert_width)
    sorted_bytes = own * top_k * size * shard.value_bytes
    exchange: Operators = ()
    if shard.ep > 1 and not shard.sums_experts:
        arriving = round(sorted_bytes * uneven)
        among = experts if shard.experts_in_turn else 0
        exchange = (
            Collective("expert exchange", "all_to_all", arriving, "ep", top_k, uneven, among, own),
        )
    before: Operators = (Gemm("router", tokens, model.hidden_size, experts + details.idle_experts),)
    behind: Operators = ()
    if details.shared_ffn_size:
        shared = -(-details.shared_ffn_size // shard.tp)
        before += feed_forward(model, tokens, shared, shard.value_bytes, count=1)
    if details.latent_size:
        before += (Gemm("latent down", tokens, model.hidden_size, size),)
        behind = (Gemm("latent up", tokens, size, model.hidden_size),)
        if details.latent_norm:
            behind = (Elementwise("latent norm", 2 * tokens * size * shard.value_bytes), *behind)
    return (
        *before,
        Elementwise("dispatch", 2 * sorted_bytes, kernels=2, permutes=True),
        *exchange,
        *feed_forward(model, each, width, shard.value_bytes, local, size=size),
        *exchange,
        Elementwise("combine", 2 * sorted_bytes, permutes=True),
        *behind,
    )


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes of the experts' inner activations and of the tokens dispatched to them."""
    shard, tokens = batch.shard, batch.tokens
    own = -(-tokens * shard.expert_width // shard.tp)
    routed, width = own * computed_per_token(model), -(-model.moe_ffn_size // shard.expert_width)
    tensors = inner_tensors(model, batch, keeps_products=keeps_products)
    shared = tokens * tensors * -(-details_of(model).shared_ffn_size // shard.tp)
    rows = 1 if batch.kernels == "fused" else UNFUSED_ROWS
    kept = (routed * (tensors * width + rows * input_size(model)) + shared) * shard.value_bytes
    # Weights of experts are of the format of hidden states, and so is what they weight.
    weighted = 0 if batch.kernels == "fused" else batch.residual_bytes
    return kept + routed * input_size(model) * weighted
