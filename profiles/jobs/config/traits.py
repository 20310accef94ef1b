"""Traits of a family of models that its configuration files leave out: `profiles/families/<model_type>.yaml`."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from rlplan.files.decoding import read_yaml
from rlplan.files.frozen import FrozenDict

FOLDER = Path(__file__).parents[2] / "families"

Saying = bool | str


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
