"""What towers of images compute: a vision transformer's passes over patches, and what joins its tokens to a text model.

Patches are embedded, pass all layers, and are merged to tokens, each through two matrices. A tower is whole on every
context-parallel rank, cut by tensor parallelism as the text model is, and lies with the embedding on the first stage.
A tower is priced in the format of what is not quantised.
Left out: opening and resizing images, position tables, and launches of an engine that captures no graph of its tower.
"""

from dataclasses import replace
from functools import lru_cache

from rlplan.models import (
    PRECISIONS,
    Batch,
    Elementwise,
    Gemm,
    ImageTower,
    ModelArchitecture,
    Operators,
    Shard,
)
from rlplan.simulator.costs.pricing import (
    Direction,
    PassSeconds,
    Setting,
    in_wide_format,
    pass_seconds,
    price,
)
from rlplan.simulator.model import backward_operators
from rlplan.simulator.placed import PlacedTask
from rlplan.workload import mean_length

NOTHING = PassSeconds()


@lru_cache(maxsize=64)
def layers_of(tower: ImageTower) -> tuple[tuple[ModelArchitecture, int], ...]:
    """Return a tower's layers as those of a text model, of each kind with their number."""
    windowed = tower.num_layers - tower.whole_layers if tower.window_patches else 0
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
        gated_mlp=tower.gated_mlp,
        attention="image-attention",
    )
    kinds = (
        (whole, tower.num_layers - windowed),
        (replace(whole, window=tower.window_patches), windowed),
    )
    return tuple((kind, count) for kind, count in kinds if count)


def tower_shard(shard: Shard, value_bytes: int = 0) -> Shard:
    """Return how a tower is cut where its text model is cut so.

    Args:
        value_bytes: Of one of its values; 0 is as many as one of the text model's has.
    """
    alone = replace(shard, cp=1, ep=1, expert_tp=0, sequence_parallel=False)
    return replace(alone, value_bytes=value_bytes or shard.value_bytes)


@lru_cache(maxsize=4096)
def tower_pass(
    setting: Setting, model: ModelArchitecture, images: int, tokens: int, direction: Direction
) -> PassSeconds:
    """Return what a tower takes for so many images of so many tokens in one direction, in seconds.

    Args:
        setting: Of the text model.
        direction: `forward`, `backward`, or what a recomputation mode repeats of the layers.
    """
    tower = model.tower
    assert tower is not None, "asked of models whose towers are known"
    wide = replace(in_wide_format(setting), pp=1, adapter=None, casts=False)
    setting = replace(
        wide, shard=tower_shard(setting.shard, PRECISIONS[wide.precision].weight_bytes)
    )
    patches = tokens * tower.merged_patches
    batch = Batch(sequences=images, tokens=images * patches, sequence_tokens=patches, head_tokens=0)
    found = NOTHING
    for kind, count in layers_of(tower):
        each = pass_seconds(setting, kind, "layer", batch, direction)
        found += each * (count * (0.5 if direction == "alternate" else 1.0))
    if direction not in ("forward", "backward"):
        return found
    ends = _ends(tower, model.hidden_size, images * tokens, setting.shard.value_bytes)
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


def training_passes(
    setting: Setting, placed: PlacedTask, sequences: int, direction: Direction
) -> PassSeconds:
    """Return what the tower of a trained or inferring model takes for a micro-batch in one direction.

    A frozen tower has a forward pass alone; beside an adapter it is frozen.

    Args:
        sequences: Of the micro-batch; each has the images of its prompt, the mean of them: where few prompts have one, a
            pass over one image counts by the share of micro-batches that have it.
    """
    images = placed.workload.images
    assert images is not None, "asked of prompts with images"
    frozen = placed.options.freezes_tower or placed.adapter is not None
    if direction != "forward" and (frozen or direction == "none"):
        return NOTHING
    expected = sequences * images.per_prompt
    count = max(1, round(expected))
    return tower_pass(setting, placed.model, count, images.tokens, direction) * (expected / count)


def seconds_per_prompt_token(setting: Setting, placed: PlacedTask) -> float:
    """Return what the tower of a generating task takes for each token that is prefilled, in seconds.

    Images are spread over all tokens of prompts and observations; so a prompt whose tokens come from a prefix cache has
    no pass of the tower either, as engines have it (vLLM, v1/core/sched/scheduler.py: encoders run for tokens that are
    scheduled).
    """
    work = placed.workload
    images = work.images
    assert images is not None, "asked of prompts with images"
    if placed.model.tower is None:
        return 0.0  # a judge of text alone
    prefilled = mean_length(work.prompt_tokens) + work.mean_observations_tokens
    together = max(1, placed.engine.max_batched_tokens // images.tokens)
    batch = tower_pass(setting, placed.model, together, images.tokens, "forward").total
    return batch.seconds / together * images.per_prompt / prefilled
