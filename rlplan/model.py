"""What a transformer is made of, as far as costs, memory and execution need to know."""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Literal

from rlplan.files.frozen import FrozenDict

Head = Literal["lm", "scalar"]
Family = Literal["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """Say that a sequence of kinds of layers follows so many times."""

    count: int = 1
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArchitecture:
    """Describe a decoder-only transformer.

    Attributes:
        ffn_size: Width of the (dense) MLP; gated MLPs have three matrices of it.
        num_experts: 0 for a dense model; then every layer is dense.
        moe_ffn_size: Width of one expert's MLP.
        attention: The kind of part of its layers that attends, a file of `rlplan/parts/`.
        feed_forward: The kind of part behind it; None is `experts` where it has any, else `dense-mlp`.
        layer_kinds: Kinds of its layers by a name of one's own; None where all are alike.
        layer_runs: Its layers in their order, by the names of their kinds.
    """

    name: str
    family: Family
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
    layer_kinds: FrozenDict[str, LayerKind] | None = None
    layer_runs: tuple[LayerRun, ...] | None = None
    source: str = ""

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
