"""Read a model's architecture from its Hugging Face `config.json`."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rlplan.errors import FileError, nearest_name
from rlplan.files.decoding import read_json
from rlplan.files.frozen import FrozenDict
from rlplan.models.folder import CONFIG_FILE
from rlplan.models.model import (
    NO_PART,
    AttentionDetails,
    ExpertDetails,
    LatentAttention,
    LayerKind,
    LayerRun,
    LinearAttention,
    ModelArchitecture,
    StateSpace,
)
from rlplan.profiles.jobs.config.faults import (
    MOST_LAYERS,
    FamilyTraits,
    architecture_fault,
    family_names,
    load_family,
)

# A key of such a name changes sizes, unless it is known not to.
_SIZE: Final = re.compile(
    r"^(num|n)_|_(dim|size|rank|heads|experts|layers|types|type|pattern|window|interval|step|freq|bias|blocks?)$"
    r"|^use_.*(norm|window|bias|moe|mlp|attention)"
)

# Keys of such names that change nothing of parameters, memory and time in any family.
_HARMLESS: Final = frozenset(
    {
        "model_type",
        "chunk_size",
        "ep_size",
        "group_size",
        "hidden_act_type",
        "n_group",
        "num_beams",
        "num_beam_groups",
        "num_logits_to_keep",
        "num_return_sequences",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "num_nextn_predict_layers",
        "mtp_num_hidden_layers",
        "max_window_layers",
        "pretraining_tp",
        "problem_type",
        "rope_type",
        "mamba_ssm_cache_dtype",
        "use_mamba_kernels",
        "use_bidirectional_attention",
        "output_attentions",
        "output_gate_type",
        "rope_local_base_freq",
        "vocab_size_per_layer_input",
    }
)
# Formats in which models are published whose training takes the weights in 16 bits all the same.
_PUBLISHED_FORMATS: Final = ("fp8", "mxfp4", "modelopt", "compressed-tensors")
# Of a model that also speaks, the part that is trained with RL: it reads, looks, listens and answers in text.
_THINKER: Final = "thinker_config"
_TEXT: Final = "text_config"
# A size that no model has; products of some of them still fit what costs are computed in.
LARGEST_SIZE: Final = 2**31
LARGEST_NUMBER: Final = 1e18


class ConfigKeys:
    """Read the keys of a file; those of a nested text model go before those around it.

    Args:
        inside: The key of the file that holds the data; none: they are the whole file.

    Attributes:
        defaults: Numbers of keys that the file may leave out.
    """

    def __init__(self, file: Path, data: Mapping[str, Any], *, inside: str = "") -> None:
        thinker = data.get(_THINKER)
        data = thinker if isinstance(thinker, dict) else data
        self.file, self.outer, self._inside = file, data, inside
        nested = data.get(_TEXT)
        self.nested = isinstance(nested, dict)
        self.data: Mapping[str, Any] = nested if isinstance(nested, dict) else data
        self.defaults: Mapping[str, int | float | bool] = FrozenDict()
        self._asked: set[str] = set()

    def error(self, key: str, problem: str, *, allowed: str | None = None) -> FileError:
        """Return the error that names the file and a key."""
        value = self.data.get(key)
        shown = value if isinstance(value, (str, int, float, bool)) else None
        field = f"{self._inside}.{key}" if self._inside else key
        return FileError(str(self.file), problem, field=field, value=shown, allowed=allowed)

    def get(self, key: str) -> object:
        """Return what the file or the family says of a key, None if neither does."""
        self._asked.add(key)
        value = self.data.get(key)
        if value is None and key == "tie_word_embeddings":
            value = self.outer.get(key)
        return self.defaults.get(key) if value is None else value

    def integer(self, key: str, *, default: int | None = None, least: int = 0) -> int:
        """Return a whole number that a size or a count can be.

        Raises:
            FileError: It is missing, or something else.
        """
        value = self.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(key, "is missing", allowed="a whole number")
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, "must be a whole number")
        if not least <= value <= LARGEST_SIZE:
            problem, allowed = f"must be at least {least}", f"a whole number from {least}"
            if value > least:
                problem, allowed = "is larger than any", f"at most {LARGEST_SIZE:,}"
            raise self.error(key, problem, allowed=allowed)
        return value

    def optional(self, key: str | None) -> int:
        """Return a whole number, 0 where there is none."""
        return 0 if key is None else self.integer(key, default=0)

    def number(self, key: str, *, default: float) -> float:
        """Return a number above 0.

        Raises:
            FileError: It is something else.
        """
        value = self.get(key)
        value = default if value is None else value
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value <= LARGEST_NUMBER:  # type: ignore[operator]
            raise self.error(key, "must be a number above 0", allowed=f"at most {LARGEST_NUMBER:g}")
        return float(value)  # type: ignore[arg-type]

    def said(self, saying: bool | str) -> bool:
        """Return what is always so, or what a key says."""
        return bool(self.get(saying)) if isinstance(saying, str) else saying

    def names(self, key: str) -> tuple[str, ...] | None:
        """Return a list of names, None where there is none.

        Raises:
            FileError: It is something else.
        """
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.error(key, "must be a list of names")
        return tuple(value)

    def refuse_the_rest(self, understood: tuple[str, ...]) -> None:
        """Refuse what would change sizes and was never asked for.

        Raises:
            FileError: There is such a key; it is named.
        """
        quantised = self.data.get("quantization_config") or self.outer.get("quantization_config")
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        if quantised and method not in _PUBLISHED_FORMATS:
            allowed = f"absent, or of {', '.join(_PUBLISHED_FORMATS)}"
            raise self.error(
                "quantization_config", "quantised weights are not supported", allowed=allowed
            )
        known = self._asked | _HARMLESS | set(understood)
        for key, value in self.data.items():
            if value and key not in known and _SIZE.search(key):
                problem = "is not understood, and may change the sizes of the model"
                raise self.error(key, problem, allowed="absent, false or 0")


# Keys of one size in different families' files.
_DEPTH = ("depth", "num_hidden_layers", "vt_num_hidden_layers")
_WIDTH = ("embed_dim", "hidden_size", "vt_hidden_size")
_INNER = ("intermediate_size", "vt_intermediate_size")
_CHANNELS = 3
# Convolutions of Qwen3-Omni's encoder of sound, each of which halves time and frequency.
_HALVINGS = 3
# Families whose MLP of the tower is gated.
_GATED = ("qwen2_5_vl", "qwen2_5_omni_vision_encoder", "gemma4_vision", "glm4v", "glm4v_moe")
# Families whose MLP of the tower is as wide as what it hands on, and whose patches are joined by one as wide as
# the file's own inner size.
_JOINED_BY_AN_MLP = ("glm4v", "glm4v_moe")


def vision_parameters(vision: ConfigKeys, hidden_size: int) -> int | None:
    """Return the parameters of a vision transformer with what joins it to the text model; None if it says no sizes.

    Layers have four matrices of attention and two or three of the MLP, with biases and two norms. Patches are
    embedded by one matrix. What joins it takes patches that lie together through two matrices (Qwen, Kimi), or
    every patch through one (Gemma, Llama 4 behind two more); so does each further place that hands on to a layer
    of the text model (deepstack).

    Args:
        vision: What the file says of it.
        hidden_size: Of the text model.

    Raises:
        FileError: A size is none.
    """
    depth, width, inner = (_first(vision, keys) for keys in (_DEPTH, _WIDTH, _INNER))
    if inner is None and width is not None and vision.get("mlp_ratio") is not None:
        inner = width * vision.integer("mlp_ratio")  # Qwen2-VL
    if depth is None or width is None or inner is None:
        return None
    matrices = 3 if vision.data.get("model_type") in _GATED else 2
    if vision.data.get("model_type") in _JOINED_BY_AN_MLP:
        inner = vision.integer("out_hidden_size", default=hidden_size)
    layer = 4 * width * width + matrices * width * inner + 9 * width + inner
    patch = vision.integer("patch_size", default=14, least=1)
    patches = width * _CHANNELS * patch**2 * vision.integer("temporal_patch_size", default=1)
    places = vision.integer("num_position_embeddings", default=0) or _grid(vision, patch)
    return depth * layer + patches + places * width + _joined(vision, width, hidden_size)


def _first(vision: ConfigKeys, keys: tuple[str, ...]) -> int | None:
    found = (vision.integer(key) for key in keys if vision.get(key) is not None)
    return next(found, None)


def _grid(vision: ConfigKeys, patch: int) -> int:
    """Return the learned positions of patches where a file tells them by the sides of a grid or an image."""
    size, table = vision.get("image_size"), vision.get("position_embedding_size")
    if isinstance(table, int):
        return 2 * table  # one for each direction
    if isinstance(size, int):
        return (size // patch) ** 2
    return vision.optional("init_pos_emb_height") * vision.optional("init_pos_emb_width")


def _joined(vision: ConfigKeys, width: int, hidden_size: int) -> int:
    merged = vision.integer("spatial_merge_size", default=1) ** 2
    kernel = vision.get("merge_kernel_size")
    if isinstance(kernel, list):
        sides = [side for side in kernel if isinstance(side, int) and 0 < side < width]
        if len(sides) != len(kernel):
            raise vision.error("merge_kernel_size", "must be a list of sides in patches")
        merged = math.prod(sides)
    if vision.get("projector_input_dim") is not None:
        between, inner = vision.integer("projector_input_dim"), vision.integer("intermediate_size")
        return inner * between + between * between + between * hidden_size
    if merged == 1:
        return width * hidden_size
    if vision.data.get("model_type") in _JOINED_BY_AN_MLP:
        out = vision.integer("out_hidden_size", default=hidden_size)
        inner = vision.integer("intermediate_size")
        return merged * width * out + out * out + 3 * out * inner
    together = merged * width
    deep = vision.get("deepstack_visual_indexes")
    times = 1 + (len(deep) if isinstance(deep, list) else 0)
    return times * (together * together + together * hidden_size)


def audio_parameters(audio: ConfigKeys, hidden_size: int) -> int | None:
    """Return the parameters of an encoder of sound with what joins it to the text model; None if it says no sizes.

    Layers are Whisper's: four matrices of attention and two of the MLP, with biases (keys have none) and two norms.
    Two convolutions over time stand before them and one matrix behind (Qwen2.5-Omni), or three over time and
    frequency with a matrix, and two matrices (Qwen3-Omni).

    Args:
        audio: What the file says of it.
        hidden_size: Of the text model.

    Raises:
        FileError: A size is none.
    """
    sizes = [_first(audio, (key,)) for key in ("encoder_layers", "d_model", "encoder_ffn_dim")]
    depth, width, inner = sizes
    if depth is None or width is None or inner is None:
        return None
    bins = audio.integer("num_mel_bins", default=128, least=1)
    out = audio.integer("output_dim", default=hidden_size)
    layer = 4 * width * width + 2 * width * inner + 8 * width + inner
    channels = audio.optional("downsample_hidden_size")
    if not channels:
        before = 3 * width * (bins + width) + 2 * width
        return depth * layer + before + 2 * width + width * out + out
    halved = -(-bins >> _HALVINGS)
    before = 9 * channels * (1 + (_HALVINGS - 1) * channels) + _HALVINGS * channels
    behind = 2 * width + width * width + width + width * out + out
    return depth * layer + before + channels * halved * width + behind


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
    family = _family(config)
    traits = load_family(family)
    config.defaults = traits.defaults
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


def _family(config: ConfigKeys) -> str:
    known, found = family_names(), config.outer.get("model_type")
    if isinstance(found, str) and found in known:
        return found
    problem = "is missing" if found is None else "this architecture is not known"
    raise FileError(
        str(config.file),
        problem,
        field="model_type",
        value=found,
        allowed=", ".join(known),
        nearest=nearest_name(str(found), known),
    )


def _sizes(config: ConfigKeys, traits: FamilyTraits, family: str) -> ModelArchitecture:
    """Return the architecture without what layers differ in."""
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    experts = _experts(config, traits)
    latent = _latent(config) if traits.latent_attention else None
    usual = config.integer("attention_head_dim", default=max(hidden // max(heads, 1), 1))
    own_width = config.integer("head_dim", default=usual)
    return ModelArchitecture(
        name="",
        family=family,
        hidden_size=hidden,
        num_layers=num_layers(config),
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", default=heads),
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
        attention=_attention_part(latent),
        norms_per_part=traits.norms_per_part,
        attention_details=_attention_details(config, traits),
        expert_details=_expert_details(config, traits) if experts else None,
        latent=latent,
        vision_parameters=_towers(config, hidden) if traits.vision else None,
    )


def _experts(config: ConfigKeys, traits: FamilyTraits) -> int:
    """Return the number of experts, 0 where a family may have none; newer files call it `num_local_experts`."""
    key, newer = traits.experts, "num_local_experts"
    if key is None:
        return 0
    if config.get(key) is None and config.get(newer) is not None:
        key = newer
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
        router_bias=traits.router_bias,
        expert_bias=traits.expert_bias,
        extra_norms=traits.extra_norms,
    )
    return None if details == ExpertDetails() else details


def _rope_theta(config: ConfigKeys) -> float:
    """Return the base of the rotary embedding; newer files hold it in `rope_parameters`."""
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
    usual = config.number("layer_norm_epsilon", default=_DEFAULT_NORM_EPSILON)
    return config.number("rms_norm_eps", default=usual)


def _towers(config: ConfigKeys, hidden_size: int) -> int | None:
    """Return the parameters of what turns images and sound into tokens; None where the file says neither."""
    found: list[int | None] = []
    for inside, parameters in (
        ("vision_config", vision_parameters),
        ("audio_config", audio_parameters),
    ):
        said = config.outer.get(inside)
        if isinstance(said, dict):
            found.append(parameters(ConfigKeys(config.file, said, inside=inside), hidden_size))
    known = [count for count in found if count is not None]
    return sum(known) if known else None


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
