"""A dense feed-forward network, gated or plain: its first matrices split by columns, the last by rows."""

from rlplan.models import Batch, Elementwise, Gemm, KeptBatch, ModelArchitecture, Operators, Shard


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters of three matrices where gated, else of two, on one device."""
    del ep
    return -(-matrices(model) * model.hidden_size * model.ffn_size // tp)


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Return both products with the activation between them."""
    del batch
    width = -(-model.ffn_size // shard.tp)
    return feed_forward(model, tokens, width, shard.value_bytes, count=1)


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes of the inner activations."""
    shard, tensors = batch.shard, inner_tensors(model, batch, keeps_products=keeps_products)
    return batch.tokens * tensors * -(-model.ffn_size // shard.tp) * shard.value_bytes


def matrices(model: ModelArchitecture) -> int:
    """Return the matrices of a network."""
    return 3 if model.gated_mlp else 2


def inner_tensors(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return how many tensors of the inner width are kept: of a gate's activation too, where nothing is fused."""
    between = 1 if model.gated_mlp and batch.kernels != "fused" else 0
    return (2 if model.gated_mlp else 1) + (1 + between if keeps_products else 0)


def feed_forward(
    model: ModelArchitecture,
    tokens: int,
    width: int,
    value_bytes: int,
    count: int,
    *,
    size: int | None = None,
) -> Operators:
    """Return the operators of `count` networks of one width, of so many tokens each.

    Args:
        size: Width of their inputs and outputs; None is the model's.
    """
    up, size = 2 if model.gated_mlp else 1, size or model.hidden_size
    return (
        Gemm("mlp up", tokens, size, up * width, count, matrices=up),
        Elementwise("activation", count * tokens * (up + 1) * width * value_bytes),
        Gemm("mlp down", tokens, width, size, count),
    )
