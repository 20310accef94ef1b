"""Parts of a layer, one file each: what a kind of attention or feed-forward network weighs, computes and keeps.

A model's layer is one part that attends and one feed-forward part between norms; `attention` and `feed_forward` of
its architecture name the files. A part knows no price and no layout beyond its shard.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from rlplan.layout import WHOLE_MODEL, ModelCut
from rlplan.models import (
    NO_PART,
    Batch,
    Head,
    KeptBatch,
    ModelArchitecture,
    Operators,
    Shard,
    layer_kinds,
)
from rlplan.plug_ins import PlugIns


class LayerPart(Protocol):
    """Say what one part of a layer is on one device."""

    def parameters(self, model: ModelArchitecture, tp: int, ep: int) -> int:
        """Return its parameters on one of tp x ep devices."""

    def operators(
        self, model: ModelArchitecture, shard: Shard, batch: Batch, tokens: int
    ) -> Operators:
        """Return its forward operators, from the norm before it to the exchange behind it.

        Args:
            tokens: Of the batch, on one context-parallel rank.
        """

    def kept_bytes(
        self, model: ModelArchitecture, batch: KeptBatch, *, keeps_products: bool
    ) -> int:
        """Return the bytes that it keeps of a micro-batch for its backward pass.

        Args:
            keeps_products: Whether outputs of memory-bound operators and unfused scores are kept too.
        """


class ExpertPart(LayerPart, Protocol):
    """Say what a part is whose experts are shared out over ranks."""

    def expert_parameters(self, model: ModelArchitecture, tp: int, ep: int) -> int:
        """Return those of its parameters that expert-parallel ranks share out among themselves."""


class AttentionPart(LayerPart, Protocol):
    """Say what a kind of attention is on one device, with its cache."""

    def core(
        self, model: ModelArchitecture, tp: int, sequences: int, query_tokens: int, cached: int
    ) -> Operators:
        """Return the operators between its projections."""

    def cached_values_per_token(self, model: ModelArchitecture, tp: int) -> int:
        """Return the values that one layer's cache holds of a token on one device."""


class StatefulPart(AttentionPart, Protocol):
    """Say what a kind of attention is that keeps a state of a sequence, however long it is."""

    def state_bytes(self, model: ModelArchitecture, tp: int, value_bytes: int) -> int:
        """Return the bytes of the state of a sequence in one layer on one device."""


class ChoosingPart(AttentionPart, Protocol):
    """Say what a kind of attention is that does not read all of its cache."""

    def read_values(self, model: ModelArchitecture, tp: int, cached: int) -> int:
        """Return the values of a sequence of so many tokens that a decode step reads in one layer on one device."""


PARTS: Final = PlugIns[LayerPart](__name__, __path__, kind="part of a model")


def parts_of(model: ModelArchitecture) -> tuple[LayerPart, ...]:
    """Return the parts of a model's layers, in their order; of one kind's (`rlplan.models.layer_kinds`)."""
    names = (model.attention, model.feed_forward_part)
    return tuple(PARTS.load(name) for name in names if name != NO_PART)


def attention_of(model: ModelArchitecture) -> AttentionPart | None:
    """Return the part of a kind's layers that attends, if they have one."""
    if model.attention == NO_PART:
        return None
    part: AttentionPart = PARTS.load(model.attention)  # type: ignore[assignment]
    return part


def layer_parameters(model: ModelArchitecture, cut: ModelCut = WHOLE_MODEL) -> int:
    """Return the parameters of one layer of a kind on one device of a cut: its parts and their norms."""
    parts = parts_of(model)
    norms = len(parts) * (model.norms_per_part or 1)
    whole = sum(part.parameters(model, cut.tp, cut.ep) for part in parts)
    if cut.expert_width != cut.tp:
        alike = cut._replace(expert_tp=0)
        whole += expert_parameters(model, cut) - expert_parameters(model, alike)
    return whole + norms * model.hidden_size + len(parts) * model.mixing_parameters


def expert_parameters(model: ModelArchitecture, cut: ModelCut = WHOLE_MODEL) -> int:
    """Return the parameters of one layer's experts on one device of a cut."""
    parts: Iterator[ExpertPart] = (
        part  # type: ignore[misc]
        for part in parts_of(model)
        if hasattr(part, "expert_parameters")
    )
    return sum(part.expert_parameters(model, cut.expert_width, cut.ep) for part in parts)


@lru_cache(maxsize=1024)
def num_parameters(model: ModelArchitecture, head: Head = "lm") -> int:
    """Return all parameters of a model with a language-model or a scalar head."""
    ends = model.embedding_parameters + model.front_parameters
    return ends + layer_kinds(model).total(layer_parameters) + model.head_parameters(head)


def attention_core(
    model: ModelArchitecture, tp: int, sequences: int, query_tokens: int, cached: int
) -> Operators:
    """Return the operators between the projections of one layer of a kind, if it attends."""
    part = attention_of(model)
    return () if part is None else part.core(model, tp, sequences, query_tokens, cached)


class CachedSequence(NamedTuple):
    """Hold the bytes that one layer's cache holds of a sequence on one device.

    Attributes:
        token_bytes: For each of its tokens.
        fixed_bytes: However long it is.
    """

    token_bytes: int
    fixed_bytes: int


def cached_sequence(
    model: ModelArchitecture, tp: int, value_bytes: int, longest_tokens: int
) -> CachedSequence:
    """Return what the cache of one layer of a kind holds of a sequence.

    A window shorter than the longest sequence is held whole: less where a sequence is shorter yet.
    """
    part = attention_of(model)
    if part is None:
        return CachedSequence(0, 0)
    token = part.cached_values_per_token(model, tp) * value_bytes
    state = state_bytes(model, tp, value_bytes)
    if model.window is not None and model.window < longest_tokens:
        return CachedSequence(0, model.window * token + state)
    return CachedSequence(token, state)


def read_bytes(model: ModelArchitecture, tp: int, value_bytes: int, cached_tokens: int) -> int:
    """Return what a decode step reads of the cache of one layer of a kind for a sequence."""
    part = attention_of(model)
    if part is None:
        return 0
    if hasattr(part, "read_values"):
        choosing: ChoosingPart = part  # type: ignore[assignment]
        return choosing.read_values(model, tp, cached_tokens) * value_bytes
    seen = cached_tokens if model.window is None else min(cached_tokens, model.window)
    return seen * part.cached_values_per_token(model, tp) * value_bytes


def state_bytes(model: ModelArchitecture, tp: int, value_bytes: int) -> int:
    """Return the bytes of the state of a sequence in one layer of a kind, 0 where it keeps none."""
    part = attention_of(model)
    if part is None or not hasattr(part, "state_bytes"):
        return 0
    stateful: StatefulPart = part  # type: ignore[assignment]
    return stateful.state_bytes(model, tp, value_bytes)


def cache_bytes_per_token(model: ModelArchitecture, value_bytes: int) -> int:
    """Return the cache bytes of one token over all layers of an uncut model, none of them windowed."""
    return layer_kinds(model).total(lambda kind: read_bytes(kind, 1, value_bytes, 1))
