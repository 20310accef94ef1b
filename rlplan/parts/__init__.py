"""Parts of a layer, one file each: what a kind of attention or feed-forward network weighs, computes and keeps.

A model's layer is one part that attends and one feed-forward part between norms; `attention` and `feed_forward` of
its architecture name the files. A part knows no price and no layout beyond its shard.
"""

from typing import Final, Protocol

from rlplan.model import Head, ModelArchitecture
from rlplan.operators import Batch, Operators, Shard
from rlplan.plug_ins import PlugIns


class LayerPart(Protocol):
    """Say what one part of a layer is on one device."""

    def parameters(self, model: ModelArchitecture, tp: int, ep: int) -> int:
        """Return its parameters on one of tp x ep devices."""

    def expert_parameters(self, model: ModelArchitecture, tp: int, ep: int) -> int:
        """Return those of them that expert-parallel ranks share out among themselves."""

    def operators(
        self, model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int
    ) -> Operators:
        """Return its forward operators, from the norm before it to the exchange behind it.

        Args:
            tokens: Of the batch, on one context-parallel rank.
        """

    def kept_bytes(
        self,
        model: ModelArchitecture,
        shard: Shard,
        tokens: int,
        spread_tokens: int,
        sequence_tokens: int,
        *,
        fused_attention: bool,
        keeps_products: bool,
    ) -> int:
        """Return the bytes that it keeps of a micro-batch for its backward pass.

        Args:
            tokens: That the rank computes.
            spread_tokens: The same with every sample's own copy of a shared prompt.
            keeps_products: Whether outputs of memory-bound operators and unfused scores are kept too.
        """


class AttentionPart(LayerPart, Protocol):
    """Say what a kind of attention is on one device, with its cache."""

    def core(
        self, model: ModelArchitecture, tp: int, sequences: int, query_tokens: int, cached: int
    ) -> Operators:
        """Return the operators between its projections."""

    def cached_values_per_token(self, model: ModelArchitecture, tp: int) -> int:
        """Return the values that one layer's cache holds of a token on one device."""


PARTS: Final = PlugIns[LayerPart](__name__, __path__, kind="part of a model")


def parts_of(model: ModelArchitecture) -> tuple[LayerPart, LayerPart]:
    """Return the parts of a model's layers, in their order."""
    return PARTS.load(model.attention), PARTS.load(model.feed_forward_part)


def attention_of(model: ModelArchitecture) -> AttentionPart:
    """Return the part of a model's layers that attends."""
    part: AttentionPart = PARTS.load(model.attention)  # type: ignore[assignment]
    return part


def layer_parameters(model: ModelArchitecture, tp: int = 1, ep: int = 1) -> int:
    """Return the parameters of one layer on one of tp x ep devices: its parts and two norms."""
    return sum(part.parameters(model, tp, ep) for part in parts_of(model)) + 2 * model.hidden_size


def num_parameters(model: ModelArchitecture, head: Head = "lm") -> int:
    """Return all parameters of a model with a language-model or a scalar head."""
    layers = model.num_layers * layer_parameters(model)
    return model.embedding_parameters + layers + model.head_parameters(head)


def cache_bytes_per_token(model: ModelArchitecture, value_bytes: int) -> int:
    """Return the cache bytes of one token over all layers of an uncut model."""
    return model.num_layers * attention_of(model).cached_values_per_token(model, 1) * value_bytes
