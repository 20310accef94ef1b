"""The layers of a model, as its `config.json` says their kinds and order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple

from rlplan.files.frozen import FrozenDict
from rlplan.models import NO_PART, AttentionDetails, ExpertDetails, LayerKind, LayerRun
from rlplan.profiles.jobs.checks import MOST_LAYERS
from rlplan.profiles.jobs.config.details import (
    HEAVY_RATIO,
    SPARSE_RATIO,
    FamilyTraits,
    attention_details_of,
    expert_details_of,
)
from rlplan.profiles.jobs.config.keys import ConfigKeys

_ATTENTION: Final = {
    "full_attention": "full",
    "attention": "full",
    "indexed_attention": "full",  # DeepSeek Sparse Attention, by its own class
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "minimax_m3_sparse": "block-sparse",
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
        """Return the layers as runs, in the shortest form: first layers as they come, then a pattern that repeats."""
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
        return single_parts(config)
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
        kind = _attention_kind(config, traits, attention)
        if attention in own:
            kind = own[attention].given_to(kind)
        if _SHARED_CACHE.strip() in words:
            wide = 2 if config.get("use_double_wide_mlp") else None
            ffn_size = wide and wide * config.integer(traits.dense_width)
            kind = replace(kind, attention="shared-cache-attention", ffn_size=ffn_size)
        if _HASHED.strip() in words:
            details = expert_details_of(config, traits) or ExpertDetails()
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


def write_pairs_out(config: ConfigKeys, key: str) -> None:
    """Write out a configuration whose layers are pairs (LongCat-Flash): twice as many layers, with a list of their kinds.

    Two attentions and two dense networks of a layer follow each other; its experts compute beside the first network.

    Raises:
        FileError: There are no layers.
    """
    pairs = _count(config, key)
    told = {"num_hidden_layers": 2 * pairs, "mlp_layer_types": ["sparse", "dense"] * pairs}
    config.data = {**config.data, **told}


def num_layers(config: ConfigKeys) -> int:
    """Return the number of layers; newer files of Nemotron-H leave it to their list.

    Raises:
        FileError: There are none.
    """
    listed = config.get("layers_block_type")
    silent = len(listed) if isinstance(listed, list) else None
    return _count(config, "num_hidden_layers", default=silent)


def _count(config: ConfigKeys, key: str, *, default: int | None = None) -> int:
    count = config.integer(key, default=default, least=1)
    if count > MOST_LAYERS:
        raise config.error(key, "is more than any model has", allowed=f"at most {MOST_LAYERS:,}")
    return count


def single_parts(config: ConfigKeys) -> Layers:
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
    listed = _listed_attention(config, traits, count)
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


def _listed_attention(
    config: ConfigKeys, traits: FamilyTraits, count: int
) -> tuple[str, ...] | None:
    """Return how layers attend where a file says it one by one, in whichever words; None where it does not."""
    listed = config.names("layer_types")
    if listed is not None:
        further = config.optional("num_nextn_predict_layers")  # which may be among them
        listed = listed[:count] if len(listed) == count + further else listed
    pattern = config.get("hybrid_layer_pattern")
    if listed is None and isinstance(pattern, list):
        listed = tuple("sliding_attention" if each else "full_attention" for each in pattern)
    if listed is None:
        listed = _delta_layers(config, count) or _block_layers(config)
    return _compressions(config, listed, count) if traits.compressed_attention else listed


def _block_layers(config: ConfigKeys) -> tuple[str, ...] | None:
    """Return how layers attend of a published file of MiniMax-M3; None of others.

    Raises:
        FileError: It says of no layer whether its index chooses.
    """
    blocks = config.get("sparse_attention_config")
    if not isinstance(blocks, dict) or not blocks.get("use_sparse_attention", True):
        return None
    sparse = blocks.get("sparse_attention_freq")
    if not isinstance(sparse, list):
        problem = "does not say of each layer whether it is sparse"
        allowed = "sparse_attention_freq, a list of 0 and 1"
        raise config.error("sparse_attention_config", problem, allowed=allowed)
    return tuple("minimax_m3_sparse" if each else "full_attention" for each in sparse)


def _delta_layers(config: ConfigKeys, count: int) -> tuple[str, ...] | None:
    """Return how layers attend of a file that counts those with Kimi delta attention from 1; None of others.

    Raises:
        FileError: It does not count all layers once.
    """
    told = config.get("linear_attn_config")
    if not isinstance(told, dict):
        return None
    delta, full = told.get("kda_layers"), told.get("full_attn_layers")
    if not isinstance(delta, list) or not isinstance(full, list):
        delta, full = [], []
    layers = [*delta, *full]
    if not all(isinstance(each, int) for each in layers) or sorted(layers) != list(
        range(1, count + 1)
    ):
        allowed = f"kda_layers and full_attn_layers, each of {count} layers in one of them"
        raise config.error("linear_attn_config", "does not count all layers", allowed=allowed)
    return tuple(
        "linear_attention" if layer in delta else "full_attention" for layer in range(1, count + 1)
    )


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
        SPARSE_RATIO: "compressed_sparse_attention",
        HEAVY_RATIO: "heavily_compressed_attention",
    }
    if not isinstance(ratios, list) or not all(ratio in names for ratio in ratios):
        allowed = f"{', '.join(map(str, names))} for each layer"
        raise config.error(
            "compress_ratios", "gives layers blocks that are not known", allowed=allowed
        )
    return tuple(names[ratio] for ratio in ratios[:count])


def _attention_kind(config: ConfigKeys, traits: FamilyTraits, name: str) -> LayerKind:
    """Return in what a kind of attention differs from what the model says."""
    if name == "linear":
        return LayerKind(attention=traits.linear_part)
    if name in ("compressed", "compressed-sparse", "block-sparse"):
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
    if not kv_heads and traits.sliding_kv_factor > 1:
        kv_heads = traits.sliding_kv_factor * config.integer("num_key_value_heads")
    usual = attention_details_of(config, traits) or AttentionDetails()
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


# What transformers 5 writes layer by layer.
_OWN_SIZES: Final = ("head_dim", "num_attention_heads", "num_key_value_heads")


class _OwnSizes(NamedTuple):
    """Hold the sizes that layers of one attention have of their own."""

    head_dim: int | None
    num_heads: int | None
    num_kv_heads: int | None

    def given_to(self, kind: LayerKind) -> LayerKind:
        """Return a kind with these sizes where they are told."""
        return replace(
            kind,
            head_dim=self.head_dim or kind.head_dim,
            num_heads=self.num_heads or kind.num_heads,
            num_kv_heads=self.num_kv_heads or kind.num_kv_heads,
        )


def _own_sizes(config: ConfigKeys, attends: Sequence[str]) -> dict[str, _OwnSizes]:
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
                told_sizes = (
                    own.integer(key, least=1) if key in sizes else None for key in _OWN_SIZES
                )
                return {attention: _OwnSizes(*told_sizes)}
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
