"""A dense network of a layer whose streams predict each other (Gemma 3n: AltUp), with a low-rank layer beside attention (Laurel).

Before a layer each of its streams is predicted from all of them, by weights that a router makes of one; the layer computes
that one alone, and the others are corrected by what it made of it, by weights of the router again (Baykal et al. 2023, AltUp,
arXiv:2301.13310; transformers, models/gemma3n: Gemma3nTextAltUp, Gemma3nTextLaurelBlock). What follows is that of a network
with inputs of its layer. Routers and both low-rank matrices are small, and every tensor-parallel rank has them whole.
"""

from rlplan.models import Batch, Elementwise, Gemm, KeptBatch, ModelArchitecture, Operators, Shard
from rlplan.parts import layer_input_mlp


def _sizes(model: ModelArchitecture) -> tuple[int, int]:
    """Return the streams, and the rank beside attention."""
    assert model.streams is not None, f"{model.name} has one stream"
    assert model.laurel_rank is not None, f"{model.name} names no rank of Laurel"
    return model.streams, model.laurel_rank


def parameters(model: ModelArchitecture, tp: int, ep: int) -> int:
    """Return the parameters of the network, of the router with its norm, of the weights that it makes, and of Laurel."""
    (streams, rank), hidden = _sizes(model), model.hidden_size
    router = streams * hidden + hidden
    weights = streams**3 + streams**2  # of predictions, of corrections
    weights += hidden  # a scale of the output
    laurel = 2 * rank * hidden + hidden
    return layer_input_mlp.parameters(model, tp, ep) + router + weights + laurel


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Return Laurel, its norm and its sum with attention's, and the network with the layer's input."""
    (_, rank), row_bytes = _sizes(model), tokens * model.hidden_size * shard.value_bytes
    return (
        Gemm("laurel down", tokens, model.hidden_size, rank),
        Gemm("laurel up", tokens, rank, model.hidden_size),
        Elementwise("laurel norm", 7 * row_bytes, kernels=3),
        *layer_input_mlp.operators(model, shard, batch, tokens),
    )


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes of the network's activations, and of what Laurel projects down and up."""
    _, rank = _sizes(model)
    own = batch.tokens * (rank + model.hidden_size) * batch.shard.value_bytes
    return layer_input_mlp.kept_bytes(model, batch, keeps_products=keeps_products) + own
