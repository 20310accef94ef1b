"""Parameters and sizes of what turns images and sound into tokens, as a `config.json` says them."""

import math
from collections.abc import Mapping
from typing import Final, Protocol

from rlplan.profiles.jobs.config.keys import ConfigKeys
from rlplan.towers import ImageTower, SoundTower, halved

# Keys of one size in different families' files.
_DEPTH = ("depth", "num_hidden_layers", "vt_num_hidden_layers")
_WIDTH = ("embed_dim", "hidden_size", "vt_hidden_size")
_INNER = ("intermediate_size", "vt_intermediate_size")
_CHANNELS = 3
# Convolutions of Qwen3-Omni's encoder of sound, each of which halves time and frequency.
_HALVINGS = 3
# Suffix of the family's name in newer files of a tower; older files have the family of the whole model.
_VISION = "_vision"
# Families whose MLP of the tower is gated.
_GATED = ("qwen2_5_vl", "qwen2_5_omni_vision_encoder", "gemma4", "glm4v", "glm4v_moe")
# Families of Qwen's towers, which say all that their passes need, by the beginning of their names.
_QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_5", "qwen3_omni")
# Families whose tower's MLP has the output width of the tower, and whose patches are merged by an MLP of the inner size
# that the file gives.
_JOINED_BY_AN_MLP = ("glm4v", "glm4v_moe")


# Gemma 3n's encoder of images, of the package timm, and its parameters as timm 1.0.31 makes it (`num_classes` 0).
MOBILE_NET: Final = "mobilenetv5_300m_enc"
MOBILE_NET_PARAMETERS: Final = 294_126_912


class Tower(Protocol):
    """Count the parameters of a kind of tower to the unit, with what joins it to the text model."""

    def __call__(self, tower: ConfigKeys, outer: ConfigKeys, hidden_size: int, /) -> int:
        """Return them.

        Args:
            tower: Its own keys.
            outer: Keys of the whole file.
            hidden_size: Of the text model.
        """


def tower_parameters(config: ConfigKeys, hidden_size: int) -> int | None:
    """Return the parameters of what turns images and sound into tokens; None where the file says neither.

    Args:
        hidden_size: Of the text model.

    Raises:
        FileError: A size is none.
    """
    found: list[int | None] = []
    for inside, parameters in (
        ("vision_config", _vision_parameters),
        ("audio_config", _audio_parameters),
    ):
        said = config.outer.get(inside)
        if not isinstance(said, dict):
            continue
        kind = str(said.get("model_type", config.outer.get("model_type"))).removesuffix(_VISION)
        said = {**said, "model_type": kind}
        keys = ConfigKeys(config.file, said, inside=inside)
        tower = _TOWERS.get(kind)
        if tower is None:
            found.append(parameters(keys, hidden_size))
        else:
            whole = {key: each for key, each in config.outer.items() if key != "text_config"}
            found.append(tower(keys, ConfigKeys(config.file, whole), hidden_size))
    known = [count for count in found if count is not None]
    return sum(known) if known else None


def image_tower(config: ConfigKeys) -> ImageTower | None:
    """Return the sizes of what turns images into tokens; None where the file has none, or one that is not known so well.

    Raises:
        FileError: A size is none.
    """
    said = config.outer.get("vision_config")
    if not isinstance(said, dict):
        return None
    kind = str(said.get("model_type", config.outer.get("model_type"))).removesuffix(_VISION)
    vision = ConfigKeys(config.file, {**said, "model_type": kind}, inside="vision_config")
    if kind == "internvl":
        whole = {key: each for key, each in config.outer.items() if key != "text_config"}
        return _intern_sizes(vision, ConfigKeys(config.file, whole))
    return _qwen_sizes(vision) if kind.startswith(_QWEN) else None


def _qwen_sizes(vision: ConfigKeys) -> ImageTower | None:
    """Return the sizes of a tower of Qwen: windows in most layers of 2.5's, outputs of some layers handed on by 3's."""
    depth, width, inner = (_first(vision, keys) for keys in (_DEPTH, _WIDTH, _INNER))
    if inner is None and width is not None:
        inner = width * vision.integer("mlp_ratio")
    if depth is None or width is None or inner is None:
        return None
    patch = vision.integer("patch_size", default=14, least=1)
    window = vision.integer("window_size", default=0) // patch
    whole, deep = vision.get("fullatt_block_indexes"), vision.get("deepstack_visual_indexes")
    return ImageTower(
        num_layers=depth,
        hidden_size=width,
        num_heads=vision.integer("num_heads", least=1),
        ffn_size=inner,
        gated_mlp=vision.data.get("model_type") in _GATED,
        patch_values=_CHANNELS * patch**2 * vision.integer("temporal_patch_size", default=1),
        merged_patches=_merged(vision, width),
        joined=1 + (len(deep) if isinstance(deep, list) else 0),
        window_patches=window**2 or None,
        whole_layers=len(whole) if window and isinstance(whole, list) else 0,
    )


def sound_tower(config: ConfigKeys) -> SoundTower | None:
    """Return the sizes of what turns sound into tokens; None where the file has none, or one that is not Qwen's.

    Qwen3-Omni's attend within `n_window_infer` frames, in pieces of `2 n_window` that convolutions halve three times each.

    Raises:
        FileError: A size is none.
    """
    audio = config.outer.get("audio_config")
    if not isinstance(audio, dict) or not str(audio.get("model_type")).startswith(_QWEN):
        return None
    sound = ConfigKeys(config.file, audio, inside="audio_config")
    channels = sound.optional("downsample_hidden_size") or None
    piece = 2 * sound.integer("n_window", default=100, least=1)
    window = piece // 2
    if channels is not None:
        pieces = sound.integer("n_window_infer", default=piece, least=1) // piece
        window = halved(piece, _HALVINGS) * pieces
    return SoundTower(
        num_layers=sound.integer("encoder_layers", least=1),
        hidden_size=sound.integer("d_model", least=1),
        num_heads=sound.integer("encoder_attention_heads", least=1),
        ffn_size=sound.integer("encoder_ffn_dim", least=1),
        mel_bins=sound.integer("num_mel_bins", default=128, least=1),
        channels=channels,
        window_positions=window,
        output_size=sound.integer("output_dim", least=1),
    )


def _intern_sizes(vision: ConfigKeys, outer: ConfigKeys) -> ImageTower:
    """Return the sizes of InternViT, whose images are tiles that do not see one another."""
    patch = _side(vision, "patch_size", default=14)
    return ImageTower(
        num_layers=vision.integer("num_hidden_layers", least=1),
        hidden_size=vision.integer("hidden_size", least=1),
        num_heads=vision.integer("num_attention_heads", least=1),
        ffn_size=vision.integer("intermediate_size", least=1),
        patch_values=_CHANNELS * patch**2,
        merged_patches=int(1 / outer.number("downsample_ratio", default=0.5)) ** 2,
        joined_narrow=True,
        window_patches=(_side(vision, "image_size", default=448) // patch) ** 2,
    )


def _pixtral(vision: ConfigKeys, outer: ConfigKeys, hidden_size: int) -> int:
    """Return those of Pixtral: gated networks, no biases, rotary positions; patches that lie together are merged."""
    width, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    layer = 4 * width * width + 3 * width * inner + 2 * width
    patches = width * _CHANNELS * _side(vision, "patch_size", default=16) ** 2 + width
    merged = outer.integer("spatial_merge_size", default=2) ** 2
    joined = width + merged * width * width + (width + hidden_size) * hidden_size
    biases = 2 * hidden_size if outer.get("multimodal_projector_bias") else 0
    return vision.integer("num_hidden_layers") * layer + patches + joined + biases


def _intern(vision: ConfigKeys, outer: ConfigKeys, hidden_size: int) -> int:
    """Return those of InternViT: scales of both parts in each layer, learned positions and one of the whole image."""
    width, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    norm = width if vision.get("norm_type") == "rms_norm" else 2 * width
    attention = 4 * width * width + width + (3 * width if vision.get("attention_bias") else 0)
    attention += 2 * width if vision.get("use_qk_norm") else 0
    layer = attention + 2 * width * inner + inner + width + 2 * norm + 2 * width
    patch = _side(vision, "patch_size", default=14)
    patches = width * _CHANNELS * patch**2 + width
    places = 1 + 1 + (_side(vision, "image_size", default=448) // patch) ** 2
    ratio = outer.number("downsample_ratio", default=0.5)
    together = width * int(1 / ratio) ** 2
    joined = 2 * together + (together + 1 + hidden_size + 1) * hidden_size
    return vision.integer("num_hidden_layers") * layer + patches + places * width + joined


def _conformer(audio: ConfigKeys, outer: ConfigKeys, hidden_size: int) -> int:
    """Return those of Gemma 4's encoder of sound: two convolutions, then networks before and behind attention and a convolution.

    Each of two networks of a layer is four times as wide; keys of relative places have a matrix of their own.
    """
    del outer
    width, out = audio.integer("hidden_size"), audio.integer("output_proj_dims", default=1536)
    kernel, heads = audio.integer("conv_kernel_size"), audio.integer("num_attention_heads", least=1)
    channels = audio.get("subsampling_conv_channels")
    if not isinstance(channels, list) or not all(isinstance(each, int) for each in channels):
        raise audio.error("subsampling_conv_channels", "must be a list of channels")
    networks, attention, convolution = 16 * width, 5 * width, 3 * width
    small = width // heads + kernel * width + 9 * width  # scales of a head, taps and norms
    layer = width * (networks + attention + convolution) + small
    before, last = 0, 1
    sizes = [int(each) for each in channels]
    for each in sizes:
        before += 9 * last * each + each
        last = each
    before += sizes[0] // 4 * last * width
    behind = width * out + out + out * hidden_size
    return audio.integer("num_hidden_layers") * layer + before + behind


def _gemma_3n_images(vision: ConfigKeys, outer: ConfigKeys, hidden_size: int) -> int:
    """Return those of Gemma 3n's encoder of images, a network of convolutions that is known by its name alone.

    Raises:
        FileError: It has another name.
    """
    del outer
    name = vision.get("architecture")
    if name not in (None, MOBILE_NET):
        raise vision.error("architecture", "is no encoder that is known", allowed=MOBILE_NET)
    return MOBILE_NET_PARAMETERS + _embedded(vision, 2048, hidden_size)


def _gemma_3n_sound(audio: ConfigKeys, outer: ConfigKeys, hidden_size: int) -> int:
    """Return those of Gemma 3n's encoder of sound: as Gemma 4's, with a norm more in each layer, handed on as it is."""
    del outer
    width, heads = (
        audio.integer("hidden_size", default=1536, least=1),
        audio.integer("conf_num_attention_heads", default=8, least=1),
    )
    kernel = audio.integer("conf_conv_kernel_size", default=5)
    small = width // heads + kernel * width + 9 * width
    layer = 24 * width * width + small
    first, last = 128, 32
    channels = audio.get("sscp_conv_channel_size")
    if isinstance(channels, list | tuple) and list(channels) != [first, last]:
        raise audio.error("sscp_conv_channel_size", "is not known", allowed=f"{first}, {last}")
    before = 9 * first + first + 9 * first * last + last
    before += audio.integer("input_feat_size", default=128) // 4 * last * width
    depth = audio.integer("conf_num_hidden_layers", default=12)
    return depth * layer + before + _embedded(audio, width, hidden_size)


def _embedded(tower: ConfigKeys, width: int, hidden_size: int) -> int:
    """Return the parameters that hand a tower of Gemma 3n on: tokens of its own, two norms and a matrix."""
    width = tower.integer("hidden_size", default=width)
    return width * (tower.integer("vocab_size", default=128) + 2 + hidden_size)


def _minimax(vision: ConfigKeys, outer: ConfigKeys, hidden_size: int) -> int:
    """Return those of MiniMax-M3's: biases throughout but of patches, which are projected one by one, then four together."""
    width, inner = vision.integer("hidden_size"), vision.integer("intermediate_size")
    layer = 4 * (width + 1) * width + (2 * width + 1) * inner + width + 4 * width
    patch = vision.integer("patch_size", default=14, least=1)
    patches = width * _CHANNELS * patch**2 * vision.integer("temporal_patch_size", default=2)
    merged = vision.integer("spatial_merge_size", default=2) ** 2
    between = outer.integer("projector_hidden_size", default=hidden_size)
    joined = (width + 1 + merged * hidden_size + 1) * between + 2 * (between + 1) * hidden_size
    return vision.integer("num_hidden_layers") * layer + patches + 2 * width + joined


def _moon(vision: ConfigKeys, outer: ConfigKeys, hidden_size: int) -> int:
    """Return those of Kimi-K3's: no biases, attention of a width of its own, one scale a norm, learned positions of a grid."""
    del outer
    width, inner = vision.integer("vt_hidden_size"), vision.integer("vt_intermediate_size")
    attention = 4 * width * vision.integer("qkv_hidden_size", default=width)
    layer = attention + 2 * width * inner + 2 * width
    patch = vision.integer("patch_size", default=14, least=1)
    places = vision.integer("init_pos_emb_height") * vision.integer("init_pos_emb_width")
    patches = width * _CHANNELS * patch**2 + places * width + width
    together = width * _merged(vision, width)
    joined = together * (together + hidden_size) + hidden_size
    return vision.integer("vt_num_hidden_layers") * layer + patches + joined


def _step(vision: ConfigKeys, outer: ConfigKeys, hidden_size: int) -> int:
    """Return those of Step-3.7's: scales of both parts in each layer, learned positions, two convolutions that halve a side.

    Published files call its width, layers and MLP otherwise than those that transformers 5 saves.
    """
    width = vision.integer("width", default=vision.optional("hidden_size"), least=1)
    depth = vision.integer("layers", default=vision.optional("num_hidden_layers"), least=1)
    ratio = vision.number("mlp_ratio", default=4.0)
    inner = vision.integer("intermediate_size", default=int(width * ratio))
    layer = 4 * (width + 1) * width + (2 * width + 1) * inner + width + 6 * width
    patch = vision.integer("patch_size", default=14, least=1)
    places = (vision.integer("image_size", least=1) // patch) ** 2
    before = width * _CHANNELS * patch**2 + places * width + 2 * width
    halved = 2 * width * (9 * width + 1) + 4 * width * (9 * 2 * width + 1)
    joined = 4 * width * hidden_size + (hidden_size if outer.get("projector_bias") else 0)
    return depth * layer + before + halved + joined


def _side(vision: ConfigKeys, key: str, *, default: int) -> int:
    """Return the side of a square that a file says as a number or as both sides.

    Raises:
        FileError: It says something else.
    """
    value = vision.get(key)
    if not isinstance(value, list):
        return vision.integer(key, default=default, least=1)
    first = value[0] if value else None
    if isinstance(first, int) and first > 0 and value == [first, first]:
        return first
    raise vision.error(key, "must be a number, or two that are the same")


# By the `model_type` of the tower; those of other kinds are counted alike, small parts of them to a twentieth of a per cent.
_TOWERS: Final[Mapping[str, Tower]] = {
    "pixtral": _pixtral,
    "internvl": _intern,
    "gemma3n": _gemma_3n_images,
    "gemma3n_audio": _gemma_3n_sound,
    "gemma4_audio": _conformer,
    "minimax_m3_vl": _minimax,
    "kimi_k3": _moon,
    "perception_encoder": _step,
    "step3p5": _step,
}


def _vision_parameters(vision: ConfigKeys, hidden_size: int) -> int | None:
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


def _merged(vision: ConfigKeys, width: int) -> int:
    """Return the patches that lie together in one token."""
    kernel = vision.get("merge_kernel_size")
    if not isinstance(kernel, list):
        return vision.integer("spatial_merge_size", default=1) ** 2
    sides = [side for side in kernel if isinstance(side, int) and 0 < side < width]
    if len(sides) != len(kernel):
        raise vision.error("merge_kernel_size", "must be a list of sides in patches")
    return math.prod(sides)


def _joined(vision: ConfigKeys, width: int, hidden_size: int) -> int:
    merged = _merged(vision, width)
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


def _audio_parameters(audio: ConfigKeys, hidden_size: int) -> int | None:
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
