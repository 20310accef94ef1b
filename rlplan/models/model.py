"""What a transformer is made of, as far as costs, memory and execution need to know."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Literal, TypeVar

from rlplan.files.frozen import FrozenDict

Head = Literal["lm", "scalar"]
Number = TypeVar("Number", int, float)


NO_PART = "none"  # what a kind of layer names in place of a part that it does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """Say in what one kind of layer differs from what its model says; None is as the model says.

    Attributes:
        attention, feed_forward: Kinds of parts, or `none`.
    """

    attention: str | None = None
    feed_forward: str | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    ffn_size: int | None = None
    window: int | None = None
    keys_are_values: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """Say that a sequence of kinds of layers follows so many times."""

    count: int = 1
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Hold the sizes of attention over compressed keys and values (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    Attributes:
        query_rank: Of compressed queries; None where they are projected at once.
        kv_rank: Of what keys and values are made of, and the cache holds.
        nope_dim, rope_dim: Of a head's queries and keys, without and with a rotary embedding.
        value_dim: Of a head's values.
        index_heads, index_dim: Heads that choose the tokens which a query attends to, and their size; 0 where it
            attends to all (DeepSeek-V3.2, arXiv:2512.02556, section 2.1).
        index_tokens: That they choose at most.
    """

    query_rank: int | None = None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    index_heads: int = 0
    index_dim: int = 0
    index_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """Hold the sizes of a gated delta network (Yang et al. 2024, arXiv:2412.06464): one state for each value head.

    Attributes:
        kernel: Tokens of the causal convolution before it.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """Hold the sizes of a Mamba-2 mixer (Dao and Gu 2024, arXiv:2405.21060): one state for each head.

    Attributes:
        groups: Of heads that share a B and a C.
        kernel: Tokens of the causal convolution before it.
        kernel_bias: Whether that has biases.
    """

    heads: int
    head_dim: int
    state_size: int
    groups: int
    kernel: int
    kernel_bias: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertDetails:
    """Say what experts have beside a router and their matrices.

    Attributes:
        shared_ffn_size: Width of the network that every token passes beside its experts; all shared experts.
        shared_gate: Whether a token says how much of it it takes.
        latent_size: Width to which tokens are projected before their experts, and back behind them.
        router_bias: Whether the router has one number more for each expert.
        expert_bias: Whether experts' matrices have biases.
        extra_norms: Norms of a layer beside those before its parts.
    """

    shared_ffn_size: int = 0
    shared_gate: bool = False
    latent_size: int | None = None
    router_bias: bool = False
    expert_bias: bool = False
    extra_norms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionDetails:
    """Say what grouped attention has beside its projections.

    Attributes:
        output_gate: Whether the output is gated by a projection as wide as the queries.
        output_bias: Whether the output matrix has biases.
        sinks: Whether each head has a logit that takes attention away from all keys.
        wide_norm: Whether queries and keys are normalised over all heads together.
    """

    output_gate: bool = False
    output_bias: bool = False
    sinks: bool = False
    wide_norm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArchitecture:
    """Describe a decoder-only transformer.

    Attributes:
        ffn_size: Width of the (dense) MLP; gated MLPs have three matrices of it.
        num_experts: 0 for a dense model; then every layer is dense.
        moe_ffn_size: Width of one expert's MLP.
        attention: The kind of part of its layers that attends, a file of `rlplan/parts/`.
        feed_forward: The kind of part behind it; None is `experts` where it has any, else `dense-mlp`.
        window: Tokens back that attention sees at most, itself included; None where it sees all.
        keys_are_values: Whether one projection gives both.
        norms_per_part: Norms of a part; Gemma has one before and one behind it.
        vision_parameters: Parameters of what turns images and sound into tokens, which lies with the embedding.
        layer_kinds: Kinds of its layers by a name of one's own; None where all are alike.
        layer_runs: Its layers in their order, by the names of their kinds.
        hugging_face: Ids of the models that have it, in a sheet; nothing once it is looked up.
    """

    name: str
    family: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    max_positions: int = 4096
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    gated_mlp: bool = True
    num_experts: int = 0
    experts_per_token: int = 0
    moe_ffn_size: int = 0
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5
    attention: str = "grouped-attention"
    feed_forward: str | None = None
    window: int | None = None
    keys_are_values: bool | None = None
    norms_per_part: int | None = None
    attention_details: AttentionDetails | None = None
    expert_details: ExpertDetails | None = None
    latent: LatentAttention | None = None
    linear: LinearAttention | None = None
    state_space: StateSpace | None = None
    vision_parameters: int | None = None
    layer_kinds: FrozenDict[str, LayerKind] | None = None
    layer_runs: tuple[LayerRun, ...] | None = None
    source: str = ""
    hugging_face: tuple[str, ...] | None = None

    def __hash__(self) -> int:
        """Return a hash of what tells models and kinds of their layers apart: all fields take eight times as long."""
        parts = (self.attention, self.feed_forward, self.window, self.head_dim, self.ffn_size)
        return hash((self.name, self.num_layers, self.hidden_size, self.layer_runs is None, *parts))

    @property
    def feed_forward_part(self) -> str:
        """Return the kind of feed-forward part of its layers."""
        return self.feed_forward or ("experts" if self.num_experts else "dense-mlp")

    @property
    def embedding_parameters(self) -> int:
        """Return the parameters of the token embedding."""
        return self.vocab_size * self.hidden_size

    def head_parameters(self, head: Head) -> int:
        """Return the parameters after the last layer: final norm and output matrix.

        A tied language-model head owns no matrix; a scalar head (critic, reward) is one row.
        """
        norm = self.hidden_size
        if head == "scalar":
            return norm + self.hidden_size
        return norm + (0 if self.tied_embeddings else self.embedding_parameters)


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """Hold the layers of a model by kind.

    Attributes:
        models: The model as it were if all its layers were of one kind, for each kind.
        order: The place among `models` of each layer's kind.
    """

    models: tuple[ModelArchitecture, ...]
    order: tuple[int, ...]

    def counts(self, first: int, last: int) -> tuple[int, ...]:
        """Return how many layers of each kind there are from the first to before the last."""
        if len(self.models) == 1:
            return (last - first,)
        layers = self.order[first:last]
        return tuple(layers.count(kind) for kind in range(len(self.models)))

    def total(
        self, amount: Callable[[ModelArchitecture], Number], counts: tuple[int, ...] | None = None
    ) -> Number:
        """Return the sum of an amount over all layers, or over so many of each kind."""
        counts = self.counts(0, len(self.order)) if counts is None else counts
        kinds = zip(self.models, counts, strict=True)
        return sum(amount(kind) * count for kind, count in kinds)


@lru_cache(maxsize=4096)
def layer_kinds(model: ModelArchitecture) -> LayerKinds:
    """Return the layers of a model by kind, in the order in which kinds first occur."""
    if model.layer_runs is None or model.layer_kinds is None:
        return LayerKinds((model,), (0,) * model.num_layers)
    names = [kind for run in model.layer_runs for kind in run.kinds * run.count]
    distinct = list(dict.fromkeys(names))
    models = tuple(_of_kind(model, model.layer_kinds[name]) for name in distinct)
    return LayerKinds(models, tuple(map(distinct.index, names)))


def _of_kind(model: ModelArchitecture, kind: LayerKind) -> ModelArchitecture:
    told = {each.name: getattr(kind, each.name) for each in fields(kind)}
    differs = {name: value for name, value in told.items() if value is not None}
    return replace(model, layer_kinds=None, layer_runs=None, **differs)
