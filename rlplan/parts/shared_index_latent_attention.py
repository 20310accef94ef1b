"""Latent attention to the tokens that the index of a layer before it chose (GLM-5.2's `indexer_types`: `shared`).

As sparse latent attention, without an index of its own: no projections, no scores, no keys in the cache. The choice is
handed on within a rank: a pipeline stage whose first layer has none is given it with its inputs, which is left out.
"""

from rlplan.models import Batch, KeptBatch, ModelArchitecture, Operators, Shard
from rlplan.parts import latent_attention
from rlplan.parts.latent_attention import sizes_of
from rlplan.parts.sparse_latent_attention import to_chosen

parameters = latent_attention.parameters
core = to_chosen
# The index has its keys in another layer.
cached_values_per_token = latent_attention.cached_values_per_token


def operators(model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int) -> Operators:
    """Return the projections of latent attention around what was chosen."""
    return latent_attention.operators(model, shard, batch, tokens, core)


def kept_bytes(model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool) -> int:
    """Return the bytes that latent attention keeps."""
    seen = min(batch.sequence_tokens, sizes_of(model).index_tokens)
    return latent_attention.kept_of(model, batch, seen, keeps_products=keeps_products)


def read_values(model: ModelArchitecture, tp: int, cached: int) -> int:
    """Return the values of a sequence's cache that a decode step reads: of the tokens that were chosen."""
    chosen = min(cached, sizes_of(model).index_tokens)
    return chosen * latent_attention.cached_values_per_token(model, tp)
