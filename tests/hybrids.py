"""Small models with layers of unlike kinds, for tests."""

from dataclasses import replace

from rlplan.files.frozen import FrozenDict
from rlplan.models import (
    NO_PART,
    AttentionDetails,
    BlockIndex,
    CompressedAttention,
    ExpertDetails,
    LatentAttention,
    LayerInputs,
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
INDEXED = with_layers(
    replace(
        LATENT,
        attention="sparse-latent-attention",
        latent=replace(LATENT.latent, index_heads=2, index_dim=8, index_tokens=64),
        expert_details=replace(LATENT.expert_details, idle_experts=2),
    ),
    {"own": LayerKind(), "shared": LayerKind(attention="shared-index-latent-attention")},
    (2, ("own", "shared")),
)
COMPRESSED = with_layers(
    replace(
        TINY,
        num_kv_heads=4,
        attention="shared-key-attention",
        compressed=CompressedAttention(
            query_rank=32,
            output_groups=2,
            output_rank=16,
            window=32,
            sparse_ratio=4,
            heavy_ratio=16,
            index_heads=2,
            index_dim=8,
            index_entries=16,
        ),
        streams=2,
    ),
    {
        "window": LayerKind(window=32),
        "heavy": LayerKind(attention="compressed-attention"),
        "sparse": LayerKind(attention="compressed-sparse-attention"),
    },
    (1, ("window", "heavy", "sparse", "heavy")),
)
BLOCKS = with_layers(
    replace(TINY, block_index=BlockIndex(heads=2, dim=8, block_tokens=16, blocks=4)),
    {"full": LayerKind(), "blocks": LayerKind(attention="block-sparse-attention")},
    (1, ("full",)),
    (3, ("blocks",)),
)
DELTA = with_layers(
    replace(
        LATENT,
        attention_details=AttentionDetails(output_gate=True),
        linear=LinearAttention(key_heads=4, value_heads=4, key_dim=16, value_dim=16, kernel=4),
        expert_details=ExpertDetails(latent_size=16, latent_norm=True),
        block_layers=2,
    ),
    {"delta": LayerKind(attention="kimi-delta-attention"), "full": LayerKind()},
    (1, ("delta", "delta", "delta", "full")),
)
SHARED = with_layers(
    replace(
        TINY,
        qk_norm=True,
        attention_details=AttentionDetails(head_gate=True, value_dim=8),
        feed_forward="layer-input-mlp",
        layer_inputs=LayerInputs(size=8, vocab_size=256),
    ),
    {
        "sliding": LayerKind(window=64, num_heads=2, num_kv_heads=2),
        "full": LayerKind(),
        "shared": LayerKind(attention="shared-cache-attention", ffn_size=64),
    },
    (1, ("sliding", "full", "shared", "shared")),
)
PREDICTED = with_layers(
    replace(
        SHARED,
        attention_details=None,
        streams=3,
        laurel_rank=4,
        feed_forward="altup-mlp",
        layer_kinds=None,
        layer_runs=None,
    ),
    {"full": LayerKind(), "shared": LayerKind(attention="shared-cache-attention")},
    (1, ("full", "full", "shared", "shared")),
)
HYBRIDS = {"windowed": WINDOWED, "linear": LINEAR, "mamba": MAMBA, "latent": LATENT}
# Of parts that newer models have.
NEWER = {
    "indexed": INDEXED,
    "compressed": COMPRESSED,
    "blocks": BLOCKS,
    "delta": DELTA,
    "shared": SHARED,
    "predicted": PREDICTED,
}
