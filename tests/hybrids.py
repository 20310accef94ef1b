"""Small models with layers of unlike kinds, for tests."""

from dataclasses import replace

from rlplan.files.frozen import FrozenDict
from rlplan.models import (
    NO_PART,
    ExpertDetails,
    LatentAttention,
    LayerKind,
    LayerRun,
    LinearAttention,
    StateSpace,
)
from rlplan.profiles.catalog import load_model


def with_layers(model, kinds, *runs):
    """Return a model with layers of these kinds, in runs of (count, names)."""
    return replace(
        model,
        layer_kinds=FrozenDict(kinds),
        layer_runs=tuple(LayerRun(count=count, kinds=names) for count, names in runs),
    )


TINY = replace(load_model("tiny"), name="hybrid", num_layers=4, max_positions=4096)
WINDOWED = with_layers(
    TINY, {"sliding": LayerKind(window=64), "full": LayerKind()}, (2, ("sliding", "full"))
)
LINEAR = with_layers(
    replace(
        TINY,
        linear=LinearAttention(key_heads=2, value_heads=4, key_dim=16, value_dim=16, kernel=4),
    ),
    {"linear": LayerKind(attention="linear-attention"), "full": LayerKind()},
    (1, ("linear", "linear", "linear", "full")),
)
MAMBA = with_layers(
    replace(
        TINY,
        state_space=StateSpace(heads=4, head_dim=16, state_size=16, groups=2, kernel=4),
    ),
    {
        "mamba": LayerKind(attention="state-space", feed_forward=NO_PART),
        "attention": LayerKind(feed_forward=NO_PART),
        "mlp": LayerKind(attention=NO_PART),
    },
    (1, ("mamba", "mlp", "attention", "mlp")),
)
LATENT = with_layers(
    replace(
        TINY,
        num_kv_heads=4,
        attention="latent-attention",
        latent=LatentAttention(query_rank=32, kv_rank=16, nope_dim=16, rope_dim=8, value_dim=16),
        num_experts=4,
        experts_per_token=2,
        moe_ffn_size=32,
        expert_details=ExpertDetails(shared_ffn_size=32, router_bias=True),
    ),
    {"dense": LayerKind(feed_forward="dense-mlp"), "experts": LayerKind()},
    (1, ("dense",)),
    (3, ("experts",)),
)
HYBRIDS = {"windowed": WINDOWED, "linear": LINEAR, "mamba": MAMBA, "latent": LATENT}
