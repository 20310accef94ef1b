"""Read a model's architecture from its Hugging Face `config.json`.

What a family of models has beside what its file says stands in `profiles/families/<model_type>.yaml`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal

from rlplan.errors import FileError, nearest_name
from rlplan.files.decoding import read_json, read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.models import (
    CONFIG_FILE,
    NO_PART,
    AttentionDetails,
    CompressedAttention,
    ExpertDetails,
    LatentAttention,
    LayerInputs,
    LayerKind,
    LayerRun,
    LinearAttention,
    ModelArchitecture,
    StateSpace,
)
from rlplan.profiles.jobs.checks import MOST_LAYERS, architecture_fault
from rlplan.profiles.jobs.config.keys import ConfigKeys
from rlplan.profiles.jobs.config.towers import tower_parameters
from rlplan.profiles.sheets import sheet_names

FOLDER = Path(__file__).parents[2] / "families"

Saying = bool | str


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraits:
    """Say how the config of a family is read; what is said as a text is the key that tells it.

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
        shared_width: Key of the shared experts' width; with `shared_experts` one expert's is taken so often.
        shared_experts: Key of the number of shared experts.
        beside_dense: Whether the dense network stays beside the experts, as a shared one.
        latent_attention: Whether keys and values are compressed.
        compressed_attention: Whether heads share keys, and blocks of tokens are compressed (DeepSeek-V4).
        hashed_layers: Key of the first layers whose tokens go to experts by their number, without a router's bias.
        streams: Key of the hidden states that layers hand on side by side.
        others_attend: How layers attend that do not attend to everything.
        value_dim: Key of the size of a head's values, where that is another than its keys'.
        head_gate: Whether a number for each head gates the output.
        window_before: Key of the tokens before a query that a window has, where a file counts them so.
        sliding_heads, sliding_kv_heads, sliding_head_dim, sliding_value_dim: Keys of what layers with a window have of
            their own.
        sliding_kv_times: How many times the KV heads of others they have where the file is silent.
        sliding_sinks: Whether their heads have sinks.
        sliding_setting: Key of what says their heads in files that have it together.
        full_every, full_every_key: Every so manieth layer attends to everything, where `layer_types` is silent.
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
    output_gate: bool = False
    sinks: bool = False
    norms_per_part: int | None = None
    gated_mlp: bool = True
    experts: str | None = None
    experts_chosen: str = "num_experts_per_tok"
    expert_width: str = "moe_intermediate_size"
    dense_width: str = "intermediate_size"
    shared_width: str | None = None
    shared_experts: str | None = None
    beside_dense: bool = False
    shared_gate: bool = False
    router_bias: Saying = False
    expert_bias: bool = False
    extra_norms: int = 0
    latent_attention: bool = False
    compressed_attention: bool = False
    hashed_layers: str | None = None
    streams: str | None = None
    others_attend: Literal["sliding", "chunked", "linear"] | None = None
    value_dim: str | None = None
    head_gate: Saying = False
    window_before: str | None = None
    sliding_heads: str | None = None
    sliding_kv_heads: str | None = None
    sliding_head_dim: str | None = None
    sliding_value_dim: str | None = None
    sliding_kv_times: int = 1
    sliding_sinks: Saying = False
    sliding_setting: str | None = None
    full_every: int = 1
    full_every_key: str | None = None
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


_ATTENTION: Final = {
    "full_attention": "full",
    "attention": "full",
    "indexed_attention": "full",  # DeepSeek Sparse Attention, by its own class
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "compressed_sparse_attention": "compressed-sparse",
    "heavily_compressed_attention": "compressed",
}
# Keys of every so manieth layer that has experts.
_EXPERTS_EVERY: Final = (
    "decoder_sparse_step",
    "moe_layer_freq",
    "interleave_moe_layer_step",
    "moe_layer_interval",
)
# Nemotron-H's letters and what newer files have for them, by our names of single parts.
_PARTS: Final = {
    "M": "mamba",
    "*": "attention",
    "-": "mlp",
    "E": "moe",
    "linear_attention": "mamba",
    "full_attention": "attention",
}
_SINGLE: Final = {
    "mamba": LayerKind(attention="state-space", feed_forward=NO_PART),
    "attention": LayerKind(feed_forward=NO_PART),
    "mlp": LayerKind(attention=NO_PART, feed_forward="dense-mlp"),
    "moe": LayerKind(attention=NO_PART, feed_forward="experts"),
}


@dataclass(frozen=True, slots=True)
class Layers:
    """Hold the kinds of a model's layers, and the kind of each."""

    kinds: FrozenDict[str, LayerKind]
    order: tuple[str, ...]

    @property
    def runs(self) -> tuple[LayerRun, ...]:
        """Return the layers in runs, as short as they can be written: some as they come before those that repeat."""
        order = self.order
        alike = next((at for at, name in enumerate(order) if name != order[0]), len(order))
        for first in (0, alike):
            repeated = _repeated(order[first:])
            if repeated is not None:
                return (*_as_they_come(order[:first]), *repeated)
        plain = _as_they_come(order)
        found = [plain if len(plain) * 2 <= len(order) else (LayerRun(kinds=order),)]
        for first in range(alike + 1, len(order)):
            repeated = _repeated(order[first:])
            if repeated is not None:
                found.append((*_as_they_come(order[:first]), *repeated))
        return min(found, key=lambda runs: sum(1 + len(run.kinds) for run in runs))


def _as_they_come(order: tuple[str, ...]) -> tuple[LayerRun, ...]:
    """Return layers as runs of alike ones."""
    alike = ((name, len(tuple(group))) for name, group in groupby(order))
    return tuple(LayerRun(count=count, kinds=(name,)) for name, count in alike)


def _repeated(order: tuple[str, ...]) -> tuple[LayerRun, ...] | None:
    """Return layers as the shortest run that repeats, with what is left of one; None where none does."""
    most = len(order)
    for length in range(1, most // 2 + 1):
        times, rest = divmod(most, length)
        unit = order[:length]
        if unit * times + unit[:rest] == order:
            tail = (LayerRun(kinds=unit[:rest]),) if rest else ()
            return (LayerRun(count=times, kinds=unit), *tail)
    return None


def layers_of(config: ConfigKeys, traits: FamilyTraits, num_experts: int) -> Layers:
    """Return a model's layers.

    Raises:
        FileError: A pattern names what is not known, or is not as long as there are layers.
    """
    count = num_layers(config)
    if traits.single_parts:
        return _single_parts(config)
    attends = _with_shared_indices(config, _attention(config, traits, count))
    shared = count - config.optional("num_kv_shared_layers")
    if shared < 1:
        problem = "leaves no layer that has keys and values"
        raise config.error("num_kv_shared_layers", problem, allowed=f"less than {count}")
    dense = _dense_layers(config, count) if num_experts else frozenset()
    hashed = _hashed_layers(config, traits, count)
    own = _own_sizes(config, attends)
    order = tuple(
        name
        + (_SHARED_CACHE if layer >= shared else "")
        + (_HASHED if layer in hashed else "")
        + (_DENSE if layer in dense else "")
        for layer, name in enumerate(attends)
    )
    kinds = {}
    for name in dict.fromkeys(order):
        attention, *words = name.split()
        kind = replace(_attention_kind(config, traits, attention), **own.get(attention, {}))
        if _SHARED_CACHE.strip() in words:
            wide = 2 if config.get("use_double_wide_mlp") else None
            ffn_size = wide and wide * config.integer(traits.dense_width)
            kind = replace(kind, attention="shared-cache-attention", ffn_size=ffn_size)
        if _HASHED.strip() in words:
            details = _expert_details(config, traits) or ExpertDetails()
            kind = replace(kind, expert_details=replace(details, router_bias=False))
        dense_part = "dense-mlp" if _DENSE.strip() in words else None
        kinds[name] = replace(kind, feed_forward=dense_part)
    return Layers(FrozenDict(kinds), order)


# Words of kinds' names: whose layers take keys and values of another, and those that have no experts where others have.
_SHARED_CACHE: Final = " shared"
_DENSE: Final = " dense"
_HASHED: Final = " hashed"


def _hashed_layers(config: ConfigKeys, traits: FamilyTraits, count: int) -> frozenset[int]:
    """Return the layers whose tokens go to experts by their number (DeepSeek-V4, section 2.1)."""
    if traits.hashed_layers is None:
        return frozenset()
    told = config.names("mlp_layer_types")
    if told is None:
        return frozenset(range(min(count, config.integer(traits.hashed_layers, default=3))))
    _check_length(config, "mlp_layer_types", told)
    return frozenset(layer for layer, network in enumerate(told) if network == "hash_moe")


def num_layers(config: ConfigKeys) -> int:
    """Return the number of layers; newer files of Nemotron-H leave it to their list.

    Raises:
        FileError: There are none.
    """
    listed = config.get("layers_block_type")
    silent = len(listed) if isinstance(listed, list) else None
    count = config.integer("num_hidden_layers", default=silent, least=1)
    if count > MOST_LAYERS:
        problem = "is more than any model has"
        raise config.error("num_hidden_layers", problem, allowed=f"at most {MOST_LAYERS:,}")
    return count


def _single_parts(config: ConfigKeys) -> Layers:
    """Return layers of one part each: a pattern of letters, or a list of names."""
    order = config.names("layers_block_type")
    key = "layers_block_type" if order else "hybrid_override_pattern"
    if order is None:
        pattern = config.get(key)
        if not isinstance(pattern, str):
            raise config.error(key, "is missing", allowed=f"letters of {' '.join(_PARTS)}")
        order = tuple(pattern)
    order = tuple(_PARTS.get(each, each) for each in order)
    config.get("hybrid_override_pattern")
    for name in order:
        if name not in _SINGLE:
            problem = f"names {name!r}, which is no known part of a layer"
            raise config.error(key, problem, allowed=", ".join((*_SINGLE, *_PARTS)))
    _check_length(config, key, order)
    return Layers(FrozenDict({name: _SINGLE[name] for name in dict.fromkeys(order)}), order)


def _check_length(config: ConfigKeys, key: str, order: Sequence[str]) -> None:
    count = num_layers(config)
    if len(order) != count:
        raise config.error(key, f"names {len(order)} layers", allowed=f"{count} layers")


def _attention(config: ConfigKeys, traits: FamilyTraits, count: int) -> tuple[str, ...]:
    listed = config.names("layer_types")
    further = config.optional("num_nextn_predict_layers")
    if listed is not None and len(listed) == count + further:
        listed = listed[:count]  # layers that predict further tokens may be among them
    if traits.compressed_attention:
        listed = _compressions(config, listed, count)
    pattern = config.get("hybrid_layer_pattern")
    if listed is None and isinstance(pattern, list):
        listed = tuple("sliding_attention" if each else "full_attention" for each in pattern)
    key = traits.full_every_key
    every = config.integer(key, default=traits.full_every, least=1) if key else traits.full_every
    if traits.others_attend is None and listed is None:
        return ("full",) * count
    if listed is not None:
        _check_length(config, "layer_types", listed)
        for name in listed:
            if name not in _ATTENTION:
                problem = f"names {name!r}, which is no known attention"
                raise config.error("layer_types", problem, allowed=", ".join(_ATTENTION))
        return tuple(_ATTENTION[name] for name in listed)
    others = traits.others_attend or "full"
    return tuple("full" if (layer + 1) % every == 0 else others for layer in range(count))


_SHARED_INDEX: Final = "shared-index"


def _with_shared_indices(config: ConfigKeys, attends: tuple[str, ...]) -> tuple[str, ...]:
    """Return how layers attend where some take the tokens that the index of a layer before them chose (GLM-5.2).

    `indexer_types` says it; where a file is silent, a pattern of letters or every so manieth layer does, as the
    configuration's class of transformers 5 has it.

    Raises:
        FileError: A layer has another word, or there is none before it that chooses.
    """
    told = config.names("indexer_types")
    pattern, every = config.get("index_topk_pattern"), config.integer("index_topk_freq", default=1)
    first = config.integer("index_skip_topk_offset", default=2)
    if told is None and isinstance(pattern, str):
        told = tuple({"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern)
    if told is None and every > 1:
        own = (max(layer - first + 1, 0) % every == 0 for layer in range(len(attends)))
        told = tuple("full" if chooses else "shared" for chooses in own)
    if told is None:
        return attends
    _check_length(config, "indexer_types", told)
    if set(told) - {"full", "shared"} or told[0] != "full":
        allowed = "full or shared for each layer, full for the first"
        raise config.error("indexer_types", "does not say whose index layers take", allowed=allowed)
    both = zip(attends, told, strict=True)
    return tuple(_SHARED_INDEX if index == "shared" else name for name, index in both)


def _compressions(
    config: ConfigKeys, listed: tuple[str, ...] | None, count: int
) -> tuple[str, ...] | None:
    """Return how DeepSeek-V4's layers attend: by name in newer files, by tokens of a block in published ones.

    Raises:
        FileError: There are other blocks than the class knows.
    """
    ratios = config.get("compress_ratios")
    if listed is not None or ratios is None:
        return listed
    names = {
        0: "sliding_attention",
        _SPARSE_RATIO: "compressed_sparse_attention",
        _HEAVY_RATIO: "heavily_compressed_attention",
    }
    if not isinstance(ratios, list) or not all(ratio in names for ratio in ratios):
        allowed = f"{', '.join(map(str, names))} for each layer"
        raise config.error(
            "compress_ratios", "gives layers blocks that are not known", allowed=allowed
        )
    return tuple(names[ratio] for ratio in ratios[:count])


def _compressed(config: ConfigKeys) -> CompressedAttention:
    rates = config.get("compress_rates")
    told = ConfigKeys(
        config.file, rates if isinstance(rates, dict) else {}, inside="compress_rates"
    )
    return CompressedAttention(
        query_rank=config.integer("q_lora_rank", least=1),
        output_groups=config.integer("o_groups", least=1),
        output_rank=config.integer("o_lora_rank", least=1),
        window=config.integer("sliding_window", least=1),
        sparse_ratio=told.integer("compressed_sparse_attention", default=_SPARSE_RATIO, least=1),
        heavy_ratio=told.integer("heavily_compressed_attention", default=_HEAVY_RATIO, least=1),
        index_heads=config.integer("index_n_heads", least=1),
        index_dim=config.integer("index_head_dim", least=1),
        index_entries=config.integer("index_topk", least=1),
    )


# Tokens of a block that DeepSeek-V4's configuration takes where a file is silent.
_SPARSE_RATIO: Final = 4
_HEAVY_RATIO: Final = 128


def _attention_kind(config: ConfigKeys, traits: FamilyTraits, name: str) -> LayerKind:
    """Return in what a kind of attention differs from what the model says."""
    if name == "linear":
        return LayerKind(attention="linear-attention")
    if name in ("compressed", "compressed-sparse"):
        return LayerKind(attention=f"{name}-attention")
    if name == _SHARED_INDEX:
        return LayerKind(attention="shared-index-latent-attention")
    if name in ("sliding", "chunked"):
        key = "sliding_window" if name == "sliding" else "attention_chunk_size"
        window = config.integer(key, least=1)
        if traits.window_before and config.get(traits.window_before) is not None:
            window = config.integer(traits.window_before) + 1
        sees_all = window >= config.integer("max_position_embeddings")
        return _of_window(config, traits, None if sees_all else window)
    if traits.others_attend != "sliding":
        return LayerKind()
    return LayerKind(
        head_dim=config.optional("global_head_dim") or None,
        num_kv_heads=config.optional("num_global_key_value_heads") or None,
        keys_are_values=config.said("attention_k_eq_v") or None,
    )


def _of_window(config: ConfigKeys, traits: FamilyTraits, window: int | None) -> LayerKind:
    """Return in what layers with a window differ: their own heads and sinks, where a family has such."""
    heads = config.optional(traits.sliding_heads)
    kv_heads = config.optional(traits.sliding_kv_heads)
    told = config.get(traits.sliding_setting) if traits.sliding_setting else None
    if isinstance(told, dict):
        own = ConfigKeys(config.file, told, inside=traits.sliding_setting or "")
        heads = own.integer("num_attention_heads", default=heads)
        kv_heads = own.integer("num_attention_groups", default=kv_heads)
        if own.integer("head_dim", default=config.integer("head_dim")) != config.integer(
            "head_dim"
        ):
            raise own.error("head_dim", "is another than that of other layers, which is not known")
    if not kv_heads and traits.sliding_kv_times > 1:
        kv_heads = traits.sliding_kv_times * config.integer("num_key_value_heads")
    usual = _attention_details(config, traits) or AttentionDetails()
    details = replace(
        usual,
        sinks=usual.sinks or config.said(traits.sliding_sinks),
        value_dim=config.optional(traits.sliding_value_dim) or usual.value_dim,
    )
    head_dim = config.optional(traits.sliding_head_dim)
    return LayerKind(
        num_heads=None if heads == config.integer("num_attention_heads") else heads or None,
        num_kv_heads=None
        if kv_heads == config.optional("num_key_value_heads")
        else kv_heads or None,
        head_dim=None if head_dim == config.optional("head_dim") else head_dim or None,
        window=window,
        attention_details=None if details == usual else details,
    )


# What transformers 5 writes layer by layer, by our field.
_OWN_SIZES: Final = {
    "head_dim": "head_dim",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
}


def _own_sizes(config: ConfigKeys, attends: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the sizes that layers of one attention have of their own, as transformers 5 writes them, by that attention.

    Raises:
        FileError: Single layers have some, or not all of one attention these, or other ones than of heads.
    """
    told = config.get("per_layer_config")
    if not told:
        return {}
    if isinstance(told, dict) and all(isinstance(each, dict) for each in told.values()):
        sizes = next(iter(told.values()))
        same = all(each == sizes for each in told.values()) and set(sizes) <= set(_OWN_SIZES)
        layers = {int(layer) for layer in told if layer.isdigit()}
        for attention in dict.fromkeys(attends):
            alike = {layer for layer, name in enumerate(attends) if name == attention}
            if same and layers == alike and len(told) == len(alike):
                own = ConfigKeys(config.file, sizes, inside="per_layer_config")
                return {attention: {_OWN_SIZES[key]: own.integer(key, least=1) for key in sizes}}
    allowed = f"the same {', '.join(_OWN_SIZES)} for each layer of one attention"
    raise config.error("per_layer_config", "gives layers sizes that are not known", allowed=allowed)


def _dense_layers(config: ConfigKeys, count: int) -> frozenset[int]:
    """Return the layers that have a dense network in a model of experts."""
    told = config.names("mlp_layer_types")
    listed, enumerated = config.get("moe_layer_freq"), config.get("moe_layers_enum")
    if told is None and isinstance(listed, list):
        told = tuple("sparse" if each else "dense" for each in listed)
    if told is None and isinstance(enumerated, str):
        sparse = {int(each) for each in enumerated.split(",") if each.strip().isdigit()}
        told = tuple("sparse" if layer in sparse else "dense" for layer in range(count))
    if told is not None:
        return _told_dense(config, told, count)
    first = config.optional("first_k_dense_replace") or config.optional("moe_layer_start_index")
    ends = config.get("moe_layer_end_index") not in (None, -1)  # ERNIE's -1 is the last layer
    last = config.integer("moe_layer_end_index") if ends else count - 1
    every = 1
    for key in _EXPERTS_EVERY:
        every = max(every, config.integer(key, default=1, least=1))
    named = config.get("mlp_only_layers") or []
    if not isinstance(named, list) or not all(isinstance(each, int) for each in named):
        raise config.error("mlp_only_layers", "must be a list of layers")
    return frozenset(
        layer
        for layer in range(count)
        if not first <= layer <= last or layer in named or (layer + 1) % every
    )


def _told_dense(config: ConfigKeys, told: Sequence[str], count: int) -> frozenset[int]:
    """Return the dense layers of a file that names each layer's network; keys of which layers are then its source."""
    for key in ("first_k_dense_replace", "mlp_only_layers", *_EXPERTS_EVERY):
        config.get(key)
    told = ["sparse" if network in ("moe", "hash_moe") else network for network in told]
    if len(told) != count or not set(told) <= {"dense", "sparse"}:
        allowed = f"dense or sparse for each of {count} layers"
        raise config.error("mlp_layer_types", "does not say each layer's network", allowed=allowed)
    return frozenset(layer for layer, network in enumerate(told) if network == "dense")


# Our field by the key of the file, for messages that speak the file's language.
_KEYS = {
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
    "num_experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "moe_ffn_size": "moe_intermediate_size",
    "layer_runs": "layer_types",
}

_DEFAULT_ROPE_THETA = 10000.0
_DEFAULT_NORM_EPSILON = 1e-6


def read_hf_config(path: Path) -> ModelArchitecture:
    """Return the architecture of a `config.json`, given as the file or as its folder.

    Families are the files of `profiles/families/`, by `model_type`.

    Raises:
        FileError: The file is missing, is no JSON, lacks a key, describes an architecture that is not known, or has
            a key that may change sizes and is not understood.
    """
    file = path / CONFIG_FILE if path.is_dir() else path
    config = ConfigKeys(file, read_json(dict, file))
    family, traits = _family(config)
    config.defaults, config.renamed = traits.defaults, traits.renamed
    model = _with_layers(_sizes(config, traits, family), config, traits)
    folder = file.resolve().parent.name
    model = replace(
        model,
        name=folder if file.name == CONFIG_FILE else file.stem,
        source=f"Hugging Face config {folder}/{file.name}",
    )
    fault = architecture_fault(model)
    if fault:
        key = traits.experts if fault.field == "num_experts" else _KEYS.get(fault.field)
        raise config.error(key or fault.field, fault.problem, allowed=fault.allowed)
    config.refuse_the_rest(traits.understood)
    return model


def _family(config: ConfigKeys) -> tuple[str, FamilyTraits]:
    """Return the family of a file and its traits; of a tower before another family's text model those of that."""
    known, found = sheet_names("families"), config.outer.get("model_type")
    if not isinstance(found, str) or found not in known:
        problem = "is missing" if found is None else "this architecture is not known"
        raise FileError(
            str(config.file),
            problem,
            field="model_type",
            value=found,
            allowed=", ".join(known),
            nearest=nearest_name(str(found), known),
        )
    traits = load_family(found)
    if traits.text_families is None:
        return found, traits
    if not config.nested:
        raise config.error("text_config", "is missing", allowed="the text model's own keys")
    text = config.data.get("model_type")
    if not isinstance(text, str) or text not in traits.text_families:
        problem = f"is no text model that is known behind the tower of {found}"
        allowed = ", ".join(traits.text_families)
        raise config.error("model_type", problem, allowed=f"text_config of {allowed}")
    family = traits.text_families[text]
    return family, replace(load_family(family), vision=True)


def _sizes(config: ConfigKeys, traits: FamilyTraits, family: str) -> ModelArchitecture:
    """Return the architecture without what layers differ in."""
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    experts = _experts(config, traits)
    latent = _latent(config) if traits.latent_attention else None
    inputs = _layer_inputs(config)
    shares_keys = traits.compressed_attention  # one vector for all heads is whole on every rank
    if shares_keys and config.integer("num_key_value_heads", default=1) != 1:
        raise config.error(
            "num_key_value_heads", "is not the one that all heads share", allowed="1"
        )
    if inputs and experts:
        problem = "beside experts is not known"
        raise config.error("hidden_size_per_layer_input", problem, allowed="0 beside experts")
    usual = config.integer("attention_head_dim", default=max(hidden // max(heads, 1), 1))
    own_width = config.integer("head_dim", default=usual)
    return ModelArchitecture(
        name="",
        family=family,
        hidden_size=hidden,
        num_layers=num_layers(config),
        num_heads=heads,
        num_kv_heads=heads if shares_keys else config.integer("num_key_value_heads", default=heads),
        head_dim=latent.nope_dim + latent.rope_dim if latent else own_width,
        ffn_size=_dense_width(config, traits, experts),
        vocab_size=config.integer("vocab_size"),
        max_positions=config.integer("max_position_embeddings"),
        tied_embeddings=config.said("tie_word_embeddings"),
        qkv_bias=config.said(traits.qkv_bias),
        qk_norm=config.said(traits.qk_norm),
        gated_mlp=traits.gated_mlp,
        num_experts=experts,
        experts_per_token=config.integer(traits.experts_chosen) if experts else 0,
        moe_ffn_size=config.integer(traits.expert_width) if experts else 0,
        rope_theta=_rope_theta(config),
        norm_epsilon=_norm_epsilon(config),
        attention="shared-key-attention" if shares_keys else _attention_part(latent),
        norms_per_part=traits.norms_per_part,
        attention_details=_attention_details(config, traits),
        expert_details=_expert_details(config, traits) if experts else None,
        latent=latent,
        compressed=_compressed(config) if shares_keys else None,
        streams=config.optional(traits.streams) or None,
        vision_parameters=tower_parameters(config, hidden) if traits.vision else None,
        feed_forward="layer-input-mlp" if inputs else None,
        layer_inputs=inputs,
    )


def _layer_inputs(config: ConfigKeys) -> LayerInputs | None:
    """Return what layers are given of a token from a table of their own (Gemma 3n and 4)."""
    size = config.optional("hidden_size_per_layer_input")
    rows = config.integer("vocab_size_per_layer_input", default=config.integer("vocab_size"))
    return LayerInputs(size=size, vocab_size=rows) if size else None


def _experts(config: ConfigKeys, traits: FamilyTraits) -> int:
    """Return the number of experts, 0 where a family may have none; newer files call it `num_local_experts`."""
    key, newer = traits.experts, "num_local_experts"
    if key is None:
        return 0
    if config.get(key) is None and config.get(newer) is not None:
        key = newer
    if traits.single_parts and "moe" not in _single_parts(config).order:
        return 0  # newer files have its class's numbers all the same
    if traits.single_parts or traits.beside_dense:
        return config.optional(key)
    count = config.integer(key)
    if count < 1:
        raise config.error(key, "must be at least 1", allowed="a whole number from 1")
    return count


def _dense_width(config: ConfigKeys, traits: FamilyTraits, experts: int) -> int:
    """Return the width of dense networks; of experts where a file knows no other."""
    if experts and config.get(traits.dense_width) is None:
        return config.integer(traits.expert_width)
    return config.integer(traits.dense_width)


def _latent(config: ConfigKeys) -> LatentAttention:
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


def _attention_part(latent: LatentAttention | None) -> str:
    if latent is None:
        return "grouped-attention"
    return "sparse-latent-attention" if latent.index_tokens else "latent-attention"


def _attention_details(config: ConfigKeys, traits: FamilyTraits) -> AttentionDetails | None:
    details = AttentionDetails(
        output_gate=traits.output_gate,
        head_gate=config.said(traits.head_gate),
        value_dim=config.optional(traits.value_dim) or None,
        output_bias=config.said(traits.output_bias),
        sinks=traits.sinks,
        wide_norm=traits.wide_norm,
    )
    return None if details == AttentionDetails() else details


def _expert_details(config: ConfigKeys, traits: FamilyTraits) -> ExpertDetails | None:
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
        latent_size=config.optional("moe_latent_size") or None,
        router_bias=config.said(traits.router_bias),
        expert_bias=traits.expert_bias,
        extra_norms=traits.extra_norms,
    )
    return None if details == ExpertDetails() else details


def _rope_theta(config: ConfigKeys) -> float:
    """Return the base of the rotary embedding; newer files hold it in `rope_parameters`, Step's have one a layer."""
    listed = config.get("rope_theta")
    if (
        isinstance(listed, list)
        and listed
        and all(isinstance(each, float | int) for each in listed)
    ):
        return float(max(listed))
    nested: Any = config.get("rope_parameters")
    if isinstance(nested, dict):
        full = nested.get("full_attention")
        nested = full if isinstance(full, dict) else nested
        inner = ConfigKeys(config.file, nested, inside="rope_parameters")
        if inner.get("rope_theta") is not None:
            return inner.number("rope_theta", default=_DEFAULT_ROPE_THETA)
    return config.number("rope_theta", default=_DEFAULT_ROPE_THETA)


def _norm_epsilon(config: ConfigKeys) -> float:
    """Return what norms add to the variance; Nemotron-H's files call it otherwise."""
    usual = config.number("layernorm_epsilon", default=_DEFAULT_NORM_EPSILON)  # MiMo-V2-Flash
    usual = config.number("layer_norm_epsilon", default=usual)
    return config.number("rms_norm_eps", default=usual)


def _with_layers(
    model: ModelArchitecture, config: ConfigKeys, traits: FamilyTraits
) -> ModelArchitecture:
    """Return a model with the kinds of its layers, and the sizes of the parts that they name."""
    layers = layers_of(config, traits, model.num_experts)
    parts = {kind.attention for kind in layers.kinds.values()}
    model = replace(
        model,
        linear=_linear(config) if "linear-attention" in parts else None,
        state_space=_state_space(config) if "state-space" in parts else None,
    )
    return _of_kinds(model, layers)


def _of_kinds(model: ModelArchitecture, layers: Layers) -> ModelArchitecture:
    """Return a model of these layers; where all are of one kind it is the model's."""
    if len(layers.kinds) > 1:
        return replace(model, layer_kinds=layers.kinds, layer_runs=layers.runs)
    (kind,) = layers.kinds.values()
    return replace(
        model,
        window=kind.window,
        attention=kind.attention or model.attention,
        feed_forward=kind.feed_forward,
    )


def _linear(config: ConfigKeys) -> LinearAttention:
    return LinearAttention(
        key_heads=config.integer("linear_num_key_heads"),
        value_heads=config.integer("linear_num_value_heads"),
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"),
        kernel=config.integer("linear_conv_kernel_dim"),
    )


def _state_space(config: ConfigKeys) -> StateSpace:
    return StateSpace(
        heads=config.integer("mamba_num_heads"),
        head_dim=config.integer("mamba_head_dim"),
        state_size=config.integer("ssm_state_size"),
        groups=config.integer("n_groups"),
        kernel=config.integer("conv_kernel"),
        kernel_bias=config.said("use_conv_bias"),
    )
