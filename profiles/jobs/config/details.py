"""Sizes of layers' parts, as a `config.json` says them, and traits of its family that it leaves out."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from rlplan.files.decoding import read_yaml
from rlplan.files.frozen import FrozenDict
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

# Tokens of a block that DeepSeek-V4's configuration takes where a file is silent.
SPARSE_RATIO: Final = 4
HEAVY_RATIO: Final = 128

FOLDER = Path(__file__).parents[2] / "families"

Saying = bool | str


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


# Traits of a family of models that its configuration files leave out: `profiles/families/<model_type>.yaml`.


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraits:
    """Say how the configuration of a family is read; where a value is a text, it is the key of the file that gives it.

    Attributes:
        like: A family with the same traits, which says all the rest.
        text_families: Of a tower of images before text models of other families, which say all the rest, their families
            by the `model_type` of `text_config`.
        source: Where the traits were read.
        qkv_bias, output_bias: Whether attention's projections have biases.
        qk_norm: Whether queries and keys are normalised, with weights.
        gated_mlp: Whether networks have three matrices, not two.
        experts: Key of the number of experts; None where there are none.
        experts_chosen: Key of the experts that a token goes to.
        expert_width, dense_width: Keys of the inner widths.
        latent_width: Key of the width to which tokens are projected before experts.
        latent_norm: Whether what experts give is normalised in that width.
        shared_width: Key of the shared experts' width; with `shared_experts` one expert's is taken so often.
        shared_experts: Key of the number of shared experts.
        idle_experts: Key of experts that compute nothing.
        beside_dense: Whether the dense network stays beside the experts, as a shared one.
        latent_attention: Whether keys and values are compressed.
        compressed_attention: Whether heads share keys, and blocks of tokens are compressed (DeepSeek-V4).
        hashed_layers: Key of the first layers whose tokens go to experts by their number, without a router's bias.
        blocks: Key of the layers of a block whose sum later parts choose among.
        streams: Key of the hidden states that layers hand on side by side.
        laurel_rank: Key of the rank of a low-rank layer beside attention, of models whose streams predict each other.
        linear_part: The part of layers of linear attention.
        full_gates: Whether gates of Kimi delta attention have one matrix each.
        others_attend: How layers attend that do not attend to everything.
        value_dim: Key of the size of a head's values, where that is another than its keys'.
        head_gate: Whether a number for each head gates the output.
        window_before: Key of the tokens before a query that a window has, where a file counts them so.
        sliding_heads, sliding_kv_heads, sliding_head_dim, sliding_value_dim: Keys of what layers with a window have of
            their own.
        sliding_kv_factor: How many times the KV heads of others they have where the file is silent.
        sliding_sinks: Whether their heads have sinks.
        sliding_setting: Key of what says their heads in files that have it together.
        full_every, full_every_key: Every so manieth layer attends to everything, where `layer_types` is silent.
        paired_layers: Key of the number of layers that are two of ours each: one with experts, one without.
        single_parts: Whether a layer is one part, told by a pattern of letters or names.
        vision: Whether it takes images, or images and sound.
        defaults: What the configuration's class takes where the file is silent.
        renamed: Keys by which newer files know what these keys say.
        understood: Keys that change nothing of parameters, memory and time.
    """

    like: str | None = None
    text_families: FrozenDict[str, str] | None = None
    source: str
    qkv_bias: Saying = False
    output_bias: Saying = False
    qk_norm: Saying = False
    wide_norm: bool = False
    output_gate: Saying = False
    sinks: bool = False
    norms_per_part: int | None = None
    gated_mlp: bool = True
    experts: str | None = None
    experts_chosen: str = "num_experts_per_tok"
    expert_width: str = "moe_intermediate_size"
    dense_width: str = "intermediate_size"
    latent_width: str = "moe_latent_size"
    latent_norm: Saying = False
    shared_width: str | None = None
    shared_experts: str | None = None
    idle_experts: str | None = None
    beside_dense: bool = False
    shared_gate: bool = False
    router_bias: Saying = False
    expert_bias: bool = False
    extra_norms: int = 0
    latent_attention: bool = False
    compressed_attention: bool = False
    hashed_layers: str | None = None
    blocks: str | None = None
    streams: str | None = None
    laurel_rank: str | None = None
    linear_part: str = "linear-attention"
    full_gates: bool = False
    others_attend: Literal["sliding", "chunked", "linear"] | None = None
    value_dim: str | None = None
    head_gate: Saying = False
    window_before: str | None = None
    sliding_heads: str | None = None
    sliding_kv_heads: str | None = None
    sliding_head_dim: str | None = None
    sliding_value_dim: str | None = None
    sliding_kv_factor: int = 1
    sliding_sinks: Saying = False
    sliding_setting: str | None = None
    full_every: int = 1
    full_every_key: str | None = None
    paired_layers: str | None = None
    single_parts: bool = False
    vision: bool = False
    defaults: FrozenDict[str, int | float | bool] = FrozenDict()
    renamed: FrozenDict[str, str] = FrozenDict()
    understood: tuple[str, ...] = ()


@cache
def load_family(name: str) -> FamilyTraits:
    """Return the traits of a known family.

    Raises:
        FileError: The file is broken.
    """
    traits = read_yaml(FamilyTraits, FOLDER / f"{name}.yaml")
    return load_family(traits.like) if traits.like else traits


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
