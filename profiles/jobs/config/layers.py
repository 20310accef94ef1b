"""The layers of a `config.json`: of which kinds they are, and in which order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from profiles.jobs.config.family_traits import FamilyTraits
from profiles.jobs.config.faults import MOST_LAYERS
from profiles.jobs.config.keys import ConfigKeys
from rlplan.files.frozen import FrozenDict
from rlplan.models.model import NO_PART, LayerKind, LayerRun

_ATTENTION: Final = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
}
# Keys of every so manieth layer that has experts.
_EXPERTS_EVERY: Final = ("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step")
# Nemotron-H's letters, and the names that newer files have for them.
_PARTS: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
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
        """Return the layers in runs, as short as they can be written."""
        order, most = self.order, len(self.order)
        for length in range(1, most // 2 + 1):
            times, rest = divmod(most, length)
            unit = order[:length]
            if unit * times + unit[:rest] == order:
                tail = (LayerRun(kinds=unit[:rest]),) if rest else ()
                return (LayerRun(count=times, kinds=unit), *tail)
        lengths: list[list[int | str]] = []
        for name in order:
            if lengths and lengths[-1][1] == name:
                lengths[-1][0] = int(lengths[-1][0]) + 1
            else:
                lengths.append([1, name])
        if 2 * len(lengths) > most:
            return (LayerRun(kinds=order),)
        return tuple(LayerRun(count=int(count), kinds=(str(name),)) for count, name in lengths)


def layers_of(config: ConfigKeys, traits: FamilyTraits, num_experts: int) -> Layers:
    """Return a model's layers.

    Raises:
        FileError: A pattern names what is not known, or is not as long as there are layers.
    """
    count = num_layers(config)
    if traits.single_parts:
        return _single_parts(config)
    attends = _attention(config, traits, count)
    dense = _dense_layers(config, count) if num_experts else frozenset()
    order = tuple(f"{name} dense" if layer in dense else name for layer, name in enumerate(attends))
    kinds = {}
    for name in dict.fromkeys(order):
        kind = _attention_kind(config, traits, name.split()[0])
        dense_part = "dense-mlp" if name.endswith(" dense") else None
        kinds[name] = replace(kind, feed_forward=dense_part)
    return Layers(FrozenDict(kinds), order)


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
        order = tuple(_PARTS.get(letter, letter) for letter in pattern)
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


def _attention_kind(config: ConfigKeys, traits: FamilyTraits, name: str) -> LayerKind:
    """Return in what a kind of attention differs from what the model says."""
    if name == "linear":
        return LayerKind(attention="linear-attention")
    if name in ("sliding", "chunked"):
        key = "sliding_window" if name == "sliding" else "attention_chunk_size"
        window = config.integer(key, least=1)
        sees_all = window >= config.integer("max_position_embeddings")
        return LayerKind(window=None if sees_all else window)
    if traits.others_attend != "sliding":
        return LayerKind()
    return LayerKind(
        head_dim=config.optional("global_head_dim") or None,
        num_kv_heads=config.optional("num_global_key_value_heads") or None,
        keys_are_values=config.said("attention_k_eq_v") or None,
    )


def _dense_layers(config: ConfigKeys, count: int) -> frozenset[int]:
    """Return the layers that have a dense network in a model of experts."""
    first = config.optional("first_k_dense_replace")
    every = 1
    for key in _EXPERTS_EVERY:
        every = max(every, config.integer(key, default=1, least=1))
    named = config.get("mlp_only_layers") or []
    if not isinstance(named, list) or not all(isinstance(each, int) for each in named):
        raise config.error("mlp_only_layers", "must be a list of layers")
    return frozenset(
        layer for layer in range(count) if layer < first or layer in named or (layer + 1) % every
    )
