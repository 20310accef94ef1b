"""A dense network with a token's own input of each layer behind it (Gemma 3n and 4: embeddings for each layer).

What a layer makes of a token is projected down, gates the token's input of that layer, and is projected up again
behind a norm. Both projections are small, and every tensor-parallel rank has them whole.
"""

from rlplan.models import (
    Batch,
    Elementwise,
    Gemm,
    KeptBatch,
    LayerInputs,
    ModelArchitecture,
    Operators,
    Shard,
)
from rlplan.parts import dense_mlp


def sizes_of(model: ModelArchitecture) -> LayerInputs:
    """Return the sizes of the inputs."""
    assert model.layer_inputs is not None, f"{model.name} names no inputs of its layers"
    return model.layer_inputs


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters of the network, of both projections and of the norm behind them, on one device."""
    both = 2 * model.hidden_size * sizes_of(model).size
    return dense_mlp.parameters(model, tp, ep) + both + model.hidden_size


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Return the network, the gate, the projection back, its norm and its residual."""
    size, row_bytes = sizes_of(model).size, tokens * model.hidden_size * shard.value_bytes
    return (
        *dense_mlp.operators(model, shard, batch, tokens),
        Gemm("layer input gate", tokens, model.hidden_size, size),
        Elementwise("layer input", 3 * tokens * size * shard.value_bytes),
        Gemm("layer input up", tokens, size, model.hidden_size),
        Elementwise("layer input norm", 5 * row_bytes, kernels=2),
    )


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes of the network's inner activations, the gate, the input and what is projected back."""
    width = 3 * sizes_of(model).size + model.hidden_size
    own = batch.tokens * width * batch.shard.value_bytes
    return dense_mlp.kept_bytes(model, batch, keeps_products=keeps_products) + own
