"""Sizes of layers' parts, as a `config.json` says them."""

from typing import Final

from rlplan.models import (
    AttentionDetails,
    BlockIndex,
    CompressedAttention,
    ExpertDetails,
    LatentAttention,
    LayerInputs,
    LinearAttention,
    StateSpace,
)
from rlplan.profiles.jobs.config.keys import ConfigKeys
from rlplan.profiles.jobs.config.traits import FamilyTraits

# Tokens of a block that DeepSeek-V4's configuration takes where a file is silent.
SPARSE_RATIO: Final = 4
HEAVY_RATIO: Final = 128


def latent_of(config: ConfigKeys) -> LatentAttention:
    """Return the sizes of latent attention, and of its index where it has one.

    Raises:
        FileError: Parts of a query's size are not its sum.
    """
    both = config.integer("qk_nope_head_dim") + config.integer("qk_rope_head_dim")
    if config.integer("qk_head_dim", default=both) != both:
        problem = "is not the sum of qk_nope_head_dim and qk_rope_head_dim"
        raise config.error("qk_head_dim", problem, allowed=str(both))
    return LatentAttention(
        query_rank=config.optional("q_lora_rank") or None,
        kv_rank=config.integer("kv_lora_rank"),
        nope_dim=config.integer("qk_nope_head_dim"),
        rope_dim=config.integer("qk_rope_head_dim"),
        value_dim=config.integer("v_head_dim"),
        index_heads=config.optional("index_n_heads"),
        index_dim=config.optional("index_head_dim"),
        index_tokens=config.optional("index_topk"),
    )


def attention_part(latent: LatentAttention | None) -> str:
    """Return the part that attends, by the sizes of latent attention if there is some."""
    if latent is None:
        return "grouped-attention"
    return "sparse-latent-attention" if latent.index_tokens else "latent-attention"


def attention_details_of(config: ConfigKeys, traits: FamilyTraits) -> AttentionDetails | None:
    """Return what attention has beside its projections; None where nothing."""
    details = AttentionDetails(
        output_gate=config.said(traits.output_gate),
        head_gate=config.said(traits.head_gate),
        value_dim=config.optional(traits.value_dim) or None,
        output_bias=config.said(traits.output_bias),
        sinks=traits.sinks,
        wide_norm=traits.wide_norm,
    )
    return None if details == AttentionDetails() else details


def expert_details_of(config: ConfigKeys, traits: FamilyTraits) -> ExpertDetails | None:
    """Return what experts have beside a router and their matrices; None where nothing."""
    shared = config.optional(traits.shared_width)
    if traits.shared_experts and not shared:
        width = config.integer(traits.expert_width)
        shared = config.optional(traits.shared_experts) * width
    if traits.shared_experts:
        config.get(traits.shared_experts)
    if traits.beside_dense:
        shared += config.integer(traits.dense_width)
    details = ExpertDetails(
        shared_ffn_size=shared,
        shared_gate=traits.shared_gate,
        latent_size=config.optional(traits.latent_width) or None,
        latent_norm=config.said(traits.latent_norm),
        router_bias=config.said(traits.router_bias),
        expert_bias=traits.expert_bias,
        extra_norms=traits.extra_norms,
        idle_experts=config.optional(traits.idle_experts),
    )
    return None if details == ExpertDetails() else details


def compressed_of(config: ConfigKeys) -> CompressedAttention:
    """Return the sizes of attention over shared and compressed keys (DeepSeek-V4)."""
    told = config.within("compress_rates")
    return CompressedAttention(
        query_rank=config.integer("q_lora_rank", least=1),
        output_groups=config.integer("o_groups", least=1),
        output_rank=config.integer("o_lora_rank", least=1),
        window=config.integer("sliding_window", least=1),
        sparse_ratio=told.integer("compressed_sparse_attention", default=SPARSE_RATIO, least=1),
        heavy_ratio=told.integer("heavily_compressed_attention", default=HEAVY_RATIO, least=1),
        index_heads=config.integer("index_n_heads", least=1),
        index_dim=config.integer("index_head_dim", least=1),
        index_entries=config.integer("index_topk", least=1),
    )


def layer_inputs_of(config: ConfigKeys) -> LayerInputs | None:
    """Return what layers are given of a token from a table of their own (Gemma 3n and 4)."""
    size = config.optional("hidden_size_per_layer_input")
    rows = config.integer("vocab_size_per_layer_input", default=config.integer("vocab_size"))
    return LayerInputs(size=size, vocab_size=rows) if size else None


def block_index_of(config: ConfigKeys) -> BlockIndex:
    """Return the sizes of what chooses blocks of the cache; published files of MiniMax-M3 have them in one key."""
    own = config.within("sparse_attention_config")
    return BlockIndex(
        heads=config.integer(
            "index_n_heads", default=own.integer("sparse_num_index_heads", default=4), least=1
        ),
        dim=config.integer(
            "index_head_dim", default=own.integer("sparse_index_dim", default=128), least=1
        ),
        block_tokens=config.integer(
            "index_block_size", default=own.integer("sparse_block_size", default=128), least=1
        ),
        blocks=config.integer(
            "index_topk_blocks", default=own.integer("sparse_topk_blocks", default=16), least=1
        ),
    )


def linear_of(config: ConfigKeys, *, full: bool = False) -> LinearAttention:
    """Return the sizes of a gated delta network, or of Kimi delta attention.

    Args:
        full: Whether both gates of the latter have one matrix each, as Ling-3.0's have. Its files tell it from
            Ling-2.5, which has Lightning attention under the same `model_type`, by bounds of a gate.

    Raises:
        FileError: A file of that `model_type` says no such bounds.
    """
    if full and config.get("kda_safe_gate") is None and config.get("kda_lower_bound") is None:
        problem = "is missing: Lightning attention, of Ling 2.5 and 2.6, is not known"
        raise config.error("kda_safe_gate", problem, allowed="as files of Ling-3.0 have it")
    own = config.within("linear_attn_config")
    # Published files of Ling-3.0 call them as those of all attention.
    usual_heads, usual_dim = ("num_attention_heads", "head_dim") if full else (None, None)
    heads = config.optional("linear_num_heads") or config.optional(usual_heads)
    heads = own.integer("num_heads", default=heads)
    if heads:
        dim = config.optional("linear_head_dim") or config.optional(usual_dim)
        dim = own.integer("head_dim", default=dim, least=1)
        usual = config.integer("short_conv_kernel_size", default=4)
        usual = config.integer("linear_conv_kernel_dim", default=usual)
        return LinearAttention(
            key_heads=heads,
            value_heads=heads,
            key_dim=dim,
            value_dim=dim,
            kernel=own.integer("short_conv_kernel_size", default=usual),
            full_gate=full or bool(own.get("use_full_rank_gate")),
            full_forget=full,
        )
    return LinearAttention(
        key_heads=config.integer("linear_num_key_heads"),
        value_heads=config.integer("linear_num_value_heads"),
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"),
        kernel=config.integer("linear_conv_kernel_dim"),
    )


def state_space_of(config: ConfigKeys) -> StateSpace:
    """Return the sizes of a Mamba-2 mixer."""
    return StateSpace(
        heads=config.integer("mamba_num_heads"),
        head_dim=config.integer("mamba_head_dim"),
        state_size=config.integer("ssm_state_size"),
        groups=config.integer("n_groups"),
        kernel=config.integer("conv_kernel"),
        kernel_bias=config.said("use_conv_bias"),
    )
