"""The parameters of what turns images into tokens, from the nested `vision_config` of a `config.json`."""

from collections.abc import Mapping
from typing import Any

# Keys of one size in different families' files.
_DEPTH = ("depth", "num_hidden_layers", "vt_num_hidden_layers")
_WIDTH = ("hidden_size", "vt_hidden_size")
_INNER = ("intermediate_size", "vt_intermediate_size")
_CHANNELS = 3
# Families whose MLP of the tower is gated.
_GATED = ("qwen2_5_vl", "gemma4_vision")


def vision_parameters(vision: Mapping[str, Any], hidden_size: int) -> int | None:
    """Return the parameters of a vision transformer with what joins it to the text model; None if it says no sizes.

    Layers have four matrices of attention and two or three of the MLP, with biases and two norms. Patches are
    embedded by one matrix. What joins it takes patches that lie together through two matrices (Qwen, Kimi), or
    every patch through one (Gemma, Llama 4 behind two more); so does each further place that hands on to a layer
    of the text model (deepstack).

    Args:
        hidden_size: Of the text model.
    """
    depth, width, inner = (_first(vision, keys) for keys in (_DEPTH, _WIDTH, _INNER))
    if depth is None or width is None or inner is None:
        return None
    matrices = 3 if vision.get("model_type") in _GATED else 2
    layer = 4 * width * width + matrices * width * inner + 9 * width + inner
    patch = int(vision.get("patch_size", 14))
    patches = width * _CHANNELS * patch**2 * int(vision.get("temporal_patch_size", 1))
    places = int(vision.get("num_position_embeddings", 0)) or _grid(vision, patch)
    return depth * layer + patches + places * width + _joined(vision, width, hidden_size)


def _first(vision: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    found = (vision[key] for key in keys if isinstance(vision.get(key), int))
    return next(found, None)


def _grid(vision: Mapping[str, Any], patch: int) -> int:
    """Return the learned positions of patches where a file tells them by the sides of a grid or an image."""
    size, table = vision.get("image_size"), vision.get("position_embedding_size")
    if isinstance(table, int):
        return 2 * table  # one for each direction
    if isinstance(size, int):
        return (size // patch) ** 2
    sides = ("init_pos_emb_height", "init_pos_emb_width")
    return int(vision.get(sides[0], 0)) * int(vision.get(sides[1], 0))


def _joined(vision: Mapping[str, Any], width: int, hidden_size: int) -> int:
    merged = int(vision.get("spatial_merge_size", 1)) ** 2
    if isinstance(vision.get("merge_kernel_size"), list):
        merged = vision["merge_kernel_size"][0] * vision["merge_kernel_size"][1]
    if "projector_input_dim" in vision:
        between = int(vision["projector_input_dim"])
        inner = int(vision["intermediate_size"])
        return inner * between + between * between + between * hidden_size
    if merged == 1:
        return width * hidden_size
    together = merged * width
    times = 1 + len(vision.get("deepstack_visual_indexes") or [])
    return times * (together * together + together * hidden_size)
