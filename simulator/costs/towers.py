"""What towers of images and of sound compute: a transformer's passes over patches or frames, and what stands around it.

Patches are embedded, pass all layers, and are merged to tokens, each through two matrices. A tower is whole on every
context-parallel rank, cut by tensor parallelism as the text model is, and lies with the embedding on the first stage.
A tower is priced in the format of what is not quantised.
Convolutions over frames of sound are products of what they see (Chellapilla et al. 2006, "im2col").
Left out: opening and resizing images, spectra of sound, position tables, and launches of an engine that captures no graph of its tower.
"""

import math
from dataclasses import replace
from functools import lru_cache

from rlplan.models import PRECISIONS, Batch, Elementwise, Gemm, ModelArchitecture, Operators, Shard
from rlplan.profiles.tables.remembered import kept_with
from rlplan.simulator.costs.pricing import (
    Direction,
    PassSeconds,
    in_wide_format,
    pass_seconds,
    price,
)
from rlplan.simulator.costs.setting import Setting
from rlplan.simulator.model import backward_operators
from rlplan.simulator.placed import PlacedTask
from rlplan.simulator.workload import Held, held_by, prompts_held, samples_sharing
from rlplan.towers import ImageTower, SoundTower
from rlplan.workload import mean_length

NOTHING = PassSeconds()


def tower_of(model: ModelArchitecture, kind: Held) -> ImageTower | SoundTower:
    """Return the sizes of a model's tower that are known."""
    tower = model.tower if kind == "images" else model.sound
    assert tower is not None, "asked of models whose towers are known"
    return tower


def positions_per_token(tower: ImageTower | SoundTower) -> int:
    """Return the positions of a tower's layers that make one token of the text model."""
    return tower.merged_patches if isinstance(tower, ImageTower) else tower.positions_per_token


def is_frozen(placed: PlacedTask, kind: Held) -> bool:
    """Tell whether a tower does not learn: as it is said of that of images, and beside an adapter."""
    told = kind == "images" and placed.options.freezes_tower
    return told or placed.adapter is not None


@lru_cache(maxsize=64)
def layers_of(tower: ImageTower | SoundTower) -> tuple[tuple[ModelArchitecture, int], ...]:
    """Return a tower's layers as those of a text model, of each kind with their number."""
    if isinstance(tower, ImageTower):
        window, gated = tower.window_patches, tower.gated_mlp
        windowed = tower.num_layers - tower.whole_layers if window else 0
    else:
        window, gated, windowed = tower.window_positions, False, tower.num_layers
    whole = ModelArchitecture(
        name="tower",
        family="",
        hidden_size=tower.hidden_size,
        num_layers=tower.num_layers,
        num_heads=tower.num_heads,
        num_kv_heads=tower.num_heads,
        head_dim=tower.hidden_size // tower.num_heads,
        ffn_size=tower.ffn_size,
        vocab_size=1,
        gated_mlp=gated,
        attention="image-attention",
    )
    kinds = (
        (whole, tower.num_layers - windowed),
        (replace(whole, window=window), windowed),
    )
    return tuple((kind, count) for kind, count in kinds if count)


def tower_shard(shard: Shard, value_bytes: int = 0) -> Shard:
    """Return how a tower is cut where its text model is cut so.

    Args:
        value_bytes: Of one of its values; 0 is as many as one of the text model's has.
    """
    alone = replace(shard, cp=1, ep=1, expert_tp=0, sequence_parallel=False)
    return replace(alone, value_bytes=value_bytes or shard.value_bytes)


@kept_with(lambda setting, *_, **__: setting.device)
def tower_pass(
    setting: Setting,
    model: ModelArchitecture,
    images: int,
    tokens: int,
    direction: Direction,
    kind: Held = "images",
) -> PassSeconds:
    """Return what a tower takes for so many images, or clips, of so many tokens in one direction, in seconds.

    Args:
        setting: Of the text model.
        direction: `forward`, `backward`, or what a recomputation mode repeats of the layers.
    """
    tower = tower_of(model, kind)
    wide = replace(in_wide_format(setting), pp=1, adapter=None, casts=False)
    setting = replace(
        wide, shard=tower_shard(setting.shard, PRECISIONS[wide.precision].weight_bytes)
    )
    patches = tokens * positions_per_token(tower)
    batch = Batch(sequences=images, tokens=images * patches, sequence_tokens=patches, head_tokens=0)
    found = NOTHING
    for layer, count in layers_of(tower):
        each = pass_seconds(setting, layer, "layer", batch, direction)
        found += each * (count * (0.5 if direction == "alternate" else 1.0))
    if direction not in ("forward", "backward"):
        return found
    if isinstance(tower, ImageTower):
        ends = _ends(tower, model.hidden_size, images * tokens, setting.shard.value_bytes)
    else:
        ends = around_sound(tower, images * tokens)
    if direction == "backward":
        ends = backward_operators(ends)
    return found + price(setting, ends, backward=direction == "backward", part="embedding")


def _ends(tower: ImageTower, hidden_size: int, tokens: int, value_bytes: int) -> Operators:
    """Return what embeds patches and what joins tokens to the text model."""
    width, together = tower.hidden_size, tower.merged_patches * tower.hidden_size
    between = hidden_size if tower.joined_narrow else together
    patches, rows = tokens * tower.merged_patches, tokens * tower.joined
    return (
        Gemm("patches", patches, tower.patch_values, width),
        Gemm("merged", rows, together, between),
        Elementwise("merged activation", 2 * rows * between * value_bytes),
        Gemm("joined", rows, between, hidden_size),
    )


def around_sound(tower: SoundTower, tokens: int) -> Operators:
    """Return what turns frames into positions, and what joins tokens to the text model."""
    return tuple(
        Gemm(f"sound {place}", math.ceil(rows * tokens), size, width)
        for place, (rows, size, width) in enumerate(tower.products)
    )


def training_passes(
    setting: Setting, placed: PlacedTask, sequences: int, direction: Direction
) -> PassSeconds:
    """Return what the towers of a trained or inferring model take for a micro-batch in one direction.

    A frozen tower has a forward pass alone; beside an adapter it is frozen.

    Args:
        sequences: Of the micro-batch. Each has the mean number of images of a prompt, counted once for sequences that
            share the prompt; where few prompts have an image, a pass over one image is weighted by the share of
            micro-batches that have one.
    """
    prompts = prompts_held(sequences, samples_sharing(placed.engine, placed.workload))
    whole = NOTHING
    for kind, each in held_by(placed.workload, placed.model):
        if direction != "forward" and (is_frozen(placed, kind) or direction == "none"):
            continue
        expected = prompts * each.per_prompt
        count = max(1, round(expected))
        passed = tower_pass(setting, placed.model, count, each.tokens, direction, kind)
        whole += passed * (expected / count)
    return whole


def seconds_per_prompt_token(setting: Setting, placed: PlacedTask) -> float:
    """Return what the towers of a generating task take for each token that is prefilled, in seconds.

    Images are spread over all tokens of prompts and observations; so a prompt whose tokens come from a prefix cache has
    no pass of the tower either, as engines have it (vLLM, v1/core/sched/scheduler.py: encoders run for tokens that are
    scheduled).
    """
    work = placed.workload
    prefilled = mean_length(work.prompt_tokens) + work.mean_observations_tokens
    seconds = 0.0
    for kind, each in held_by(work, placed.model):
        together = max(1, placed.engine.max_batched_tokens // each.tokens)
        batch = tower_pass(setting, placed.model, together, each.tokens, "forward", kind).total
        seconds += batch.seconds / together * each.per_prompt / prefilled
    return seconds
