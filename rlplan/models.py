"""Models as data: architectures, number formats, operators, adapters."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Literal, NamedTuple, TypeGuard, TypeVar, get_args

from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import AtLeastOne, NonNegativeInt, Positive, Share
from rlplan.towers import ImageTower, SoundTower

CONFIG_FILE = "config.json"
WEIGHT_FILES = "*.safetensors"

# The part of a layer whose queries share keys and values in groups (`rlplan/parts/grouped_attention.py`).
GROUPED_ATTENTION = "grouped-attention"
LINEAR_ATTENTION = "linear-attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Say that a model is trained by adapters (LoRA: Hu et al. 2021, arXiv:2106.09685, section 4.1).

    Its own weights are frozen: kept in the job's format, without gradients and optimizer states. A linear
    layer of k inputs and n outputs gets two matrices, k x r and r x n, beside it.

    Attributes:
        rank: The r of both matrices.
        alpha: What they add is multiplied by alpha / rank; None takes the rank.
        targets: Which linear layers have them: all of a block (routers, embedding and head aside), or
            those of its attention or its feed-forward part.
        shares_reference: Whether the frozen weights, adapters off, are the reference model, so that no
            second copy of it is kept (the actor's).
        sync: What generation gets after an update (the actor's): the `adapter`, which its engine computes
            in addition to the weights that it keeps, or whole weights with the adapters `merged` into them.
        whole_first: Whether the engine starts without weights, and each rank that trains has all of them whole in host memory
            for the first sync (the actor's).
    """

    rank: AtLeastOne = 16
    alpha: Positive | None = None
    targets: Literal["all-linear", "attention", "feed-forward"] = "all-linear"
    shares_reference: bool = True
    sync: Literal["adapter", "merged"] = "adapter"
    whole_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateSchedule:
    """Say what share of the full learning rate each iteration is trained with.

    Attributes:
        warmup_iterations: Length of the warm-up: shares rise in equal steps, and the first iteration after it has the
            full rate.
        decay: How the rate falls after the warm-up: not at all, along half a `cosine`, or linearly.
        iterations: Iteration, warm-up included, at which the rate reaches its minimum; None with a `constant` rate.
        minimum_share: The minimum, as a share of the full rate.
    """

    warmup_iterations: NonNegativeInt = 0
    decay: Literal["constant", "cosine", "linear"] = "constant"
    iterations: AtLeastOne | None = None
    minimum_share: Share = 0.0

    def share(self, iteration: int) -> float:
        """Return the share of an iteration, counted from 0 over the whole run."""
        warmup = self.warmup_iterations
        if iteration < warmup:
            return (iteration + 1) / (warmup + 1)
        if self.decay == "constant":
            return 1.0
        assert self.iterations is not None, "a job's schedule is checked"
        done = min(1.0, (iteration - warmup) / (self.iterations - warmup))
        left = 1.0 - done if self.decay == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0
        return self.minimum_share + (1.0 - self.minimum_share) * left


TrainingPrecision = Literal["fp32", "bf16", "fp16"]
NarrowPrecision = Literal["fp8", "mxfp8", "nvfp4"]
WeightOnlyPrecision = Literal["mxfp4", "int4"]
Precision = TrainingPrecision | NarrowPrecision | WeightOnlyPrecision


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionPlan:
    """Say how many bytes weights, gradients and optimizer states take per parameter.

    Attributes:
        weight_bytes: One weight as the forward pass reads it.
        gradient_bytes: One gradient as it is accumulated.
        optimizer_bytes: Master weight and Adam's two moments.
        master_bytes: Of these, the master weight; 0 where the weight itself is stepped.
    """

    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    master_bytes: int


# Mixed-precision Adam: 2 + 2 bytes and 12 of fp32 master weight and moments, or gradients
# accumulated in fp32 (Rajbhandari et al. 2020, ZeRO, section 3.1). Full fp32 keeps no master copy.
# In a narrow format only the inputs of linear layers' products are held; all else keeps a wide one. Where weights alone are
# quantised (four bits with a scale for a group), products are those of the wide format, and nothing trains.
PRECISIONS: dict[Precision, PrecisionPlan] = {
    "fp32": PrecisionPlan(weight_bytes=4, gradient_bytes=4, optimizer_bytes=8, master_bytes=0),
    "bf16": PrecisionPlan(weight_bytes=2, gradient_bytes=4, optimizer_bytes=12, master_bytes=4),
    "fp16": PrecisionPlan(weight_bytes=2, gradient_bytes=2, optimizer_bytes=12, master_bytes=4),
    "fp8": PrecisionPlan(weight_bytes=1, gradient_bytes=4, optimizer_bytes=12, master_bytes=4),
    "mxfp8": PrecisionPlan(weight_bytes=1, gradient_bytes=4, optimizer_bytes=12, master_bytes=4),
    "nvfp4": PrecisionPlan(weight_bytes=1, gradient_bytes=4, optimizer_bytes=12, master_bytes=4),
    "mxfp4": PrecisionPlan(weight_bytes=1, gradient_bytes=4, optimizer_bytes=12, master_bytes=4),
    "int4": PrecisionPlan(weight_bytes=1, gradient_bytes=4, optimizer_bytes=12, master_bytes=4),
}

# States of a trainer that keeps no master copy: weights, gradients and both of Adam's moments in one format
# (PyTorch's optimizers keep moments in their parameters' format; EasyR1 README, "BF16" of its table of hardware).
ALONE: dict[TrainingPrecision, PrecisionPlan] = {
    "fp32": PRECISIONS["fp32"],
    "bf16": PrecisionPlan(weight_bytes=2, gradient_bytes=2, optimizer_bytes=4, master_bytes=0),
    "fp16": PrecisionPlan(weight_bytes=2, gradient_bytes=2, optimizer_bytes=4, master_bytes=0),
}

# Optimizers by what they keep. `kahan-bf16`: both of Adam's moments and what rounding takes off every step, all in bf16
# whatever the weights' format (torchdistX, AnyPrecisionAdamW with Kahan summation). `masters` and `remainders` are of
# Transformer Engine's FusedAdam (pytorch/optimizers/fused_adam.py): a master copy in fp32 of its own, or the low 16 bits of one
# whose high 16 bits are weights in bf16 (`store_param_remainders`), and both moments in fp32 or, by the ending, in bf16.
OptimizerKind = Literal[
    "adam", "kahan-bf16", "masters", "masters-bf16", "remainders", "remainders-bf16"
]
KEPT_BYTES: dict[OptimizerKind, int] = {
    "kahan-bf16": 6,
    "masters": 12,
    "masters-bf16": 8,
    "remainders": 10,
    "remainders-bf16": 6,
}

# Bytes of scales for each narrow weight: one in fp32 for a block of 128 x 128 (DeepSeek-AI 2024,
# arXiv:2412.19437, section 3.3.2), or one of 8 bits for every 32 (OCP Microscaling Formats v1.0, table 1). NVFP4 has one of
# 8 bits for every 16 weights of 4 bits (NVIDIA 2025, arXiv:2509.25149, section 2), half a byte less than `weight_bytes` has.
# MXFP4 has one of 8 bits for every 32 (OCP Microscaling Formats v1.0, table 1), and INT4 of four bits as Kimi-K2-Thinking is
# published one of 16 bits for every 32 (quantization_config of its config.json: group_size 32).
SCALE_BYTES: dict[NarrowPrecision | WeightOnlyPrecision, float] = {
    "fp8": 4 / 128**2,
    "mxfp8": 1 / 32,
    "nvfp4": 1 / 16 - 1 / 2,
    "mxfp4": 1 / 32 - 1 / 2,
    "int4": 2 / 32 - 1 / 2,
}


# The format of what is not quantised beside products of each: activations between kernels, attention
# scores, embedding and output head (TensorRT-LLM's, vLLM's and Transformer Engine's recipes leave the
# output matrix out), and in training weights, gradients and optimizer states.
WIDE: dict[Precision, TrainingPrecision] = {
    "fp32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "bf16",
    "mxfp8": "bf16",
    "nvfp4": "bf16",
    "mxfp4": "bf16",
    "int4": "bf16",
}


def is_narrow(precision: Precision) -> TypeGuard[NarrowPrecision | WeightOnlyPrecision]:
    """Tell whether weights of linear layers are quantised in a format."""
    return precision in SCALE_BYTES


# Formats of weights alone: in which others a device computes products with them (Marlin's kernels).
OF_PRODUCTS: dict[Precision, TrainingPrecision] = {
    each: WIDE[each] for each in get_args(WeightOnlyPrecision)
}


def quantises_inputs(precision: Precision) -> bool:
    """Tell whether products in a format have inputs that are quantised for them."""
    return is_narrow(precision) and precision not in OF_PRODUCTS


Group = Literal["tp", "ep", "cp"]
CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"
]
ContextExchange = Literal["gather", "ulysses"]
FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Gemm:
    """Multiply (m x k) by (k x n), `count` times.

    Attributes:
        matrices: Of the model's own, side by side in the n columns.
        frozen: Whether the (k x n) weights have no gradient.
    """

    name: str
    m: int
    k: int
    n: int
    count: int = 1
    matrices: int = 1
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """Attend with `query_tokens` of each sequence over them and `cached_tokens` before them."""

    name: str
    batch: int
    query_tokens: int
    cached_tokens: int
    q_heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Scan:
    """Take a state of each head of each sequence past `query_tokens` tokens; the state is in fp32.

    Attributes:
        key_dim, value_dim: Of a head's state.
        delta: Whether what a state holds of a key is replaced, not added to (the delta rule).
    """

    name: str
    sequences: int
    query_tokens: int
    heads: int
    key_dim: int
    value_dim: int
    delta: bool = False


@dataclass(frozen=True, slots=True)
class Elementwise:
    """Move bytes through `kernels` memory-bound kernels; `permutes` says that rows change their places."""

    name: str
    num_bytes: float
    kernels: int = 1
    permutes: bool = False


@dataclass(frozen=True, slots=True)
class Collective:
    """Exchange a tensor of `num_bytes` (in full) within the group.

    Attributes:
        copies: Times that a row is in it, for ranks that may be the same.
        uneven: Its bytes over those of the mean rank.
        among: Experts of a layer where a row's follow one another; 0 where each lies anywhere.
        rows: Of the mean rank, each counted once; 0 where they are no messages of their own.
    """

    name: str
    kind: CollectiveKind
    num_bytes: float
    group: Group = "tp"
    copies: int = 1
    uneven: float = 1.0
    among: int = 0
    rows: int = 0


Operator = Gemm | Attention | Scan | Elementwise | Collective
Operators = tuple[Operator, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Say how one device's part of the model is cut out of the whole.

    Attributes:
        expert_tp: Ranks that each expert's width is cut over; 0 is tp.
        context_exchange: How context-parallel ranks attend: each gathers keys and values, or gets some
            heads of all tokens (Ulysses; Jacobs et al. 2023, arXiv:2309.14509, section 3).
        value_bytes: Bytes of one weight or activation.
        popularity_spread: Of experts (`rlplan.parts.experts`); None is that of published traces.
        experts_in_turn: Whether tokens get experts in turn, without a router.
        sums_experts: Whether ranks that share out experts have the same tokens: each computes what its experts get of them, and
            the sum over tensor-parallel ranks that ends a layer adds up, without any exchange before it.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    expert_tp: int = 0
    context_exchange: ContextExchange = "gather"
    value_bytes: int = 2
    sequence_parallel: bool = False
    popularity_spread: float | None = None
    experts_in_turn: bool = False
    sums_experts: bool = False

    @property
    def expert_width(self) -> int:
        """Return the ranks that each expert's width is cut over."""
        return self.expert_tp or self.tp

    @property
    def splits_sequence(self) -> bool:
        """Tell whether norms and residuals are split over the tensor-parallel ranks."""
        return self.sequence_parallel and self.tp > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Describe the tokens of one (micro-)batch.

    Attributes:
        tokens: Query tokens of the batch, padding included where it is computed.
        sequence_tokens: Query tokens of a sequence whose attention costs what the average one's
            does.
        cached_tokens: Tokens of a sequence whose keys and values lie in the cache.
        head_tokens: Tokens that reach the output head.
    """

    sequences: int
    tokens: int
    sequence_tokens: int
    cached_tokens: int = 0
    head_tokens: int


LayerKernels = Literal["fused", "eager", "autocast"]


class KeptBatch(NamedTuple):
    """Describe a micro-batch whose activations layers keep for the backward pass.

    Attributes:
        shard: The device's part of the model.
        fused_attention: Whether attention never writes its scores to memory.
        shared_tokens: Tokens of shared prompts that are not computed again for further samples. Attention copies queries,
            keys and values to all sequences, and keeps these copies.
        kernels: How its layers are computed: norms and activations in one kernel each, which keeps only its input
            (`fused`); operation by operation, which keeps the intermediates too (`eager`); or the same with weights and
            residuals in fp32 and products in bf16 (`autocast`).
    """

    shard: Shard
    sequences: int
    sequence_tokens: int
    fused_attention: bool
    shared_tokens: int = 0
    kernels: LayerKernels = "fused"

    @property
    def tokens(self) -> int:
        """Return the tokens that one context-parallel rank computes."""
        return -(-(self.sequences * self.sequence_tokens - self.shared_tokens) // self.shard.cp)

    @property
    def spread_tokens(self) -> int:
        """Return the same number, with a copy of the shared prompt for every sample."""
        return -(-self.sequences * self.sequence_tokens // self.shard.cp)

    @property
    def residual_bytes(self) -> int:
        """Return the bytes of one value of the hidden states between layers."""
        return FP32_BYTES if self.kernels == "autocast" else self.shard.value_bytes


Head = Literal["lm", "scalar"]
Number = TypeVar("Number", int, float)


NO_PART = "none"  # what a kind of layer names in place of a part that it does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionDetails:
    """Say what grouped attention has in addition to its projections.

    Attributes:
        output_gate: Whether the output is gated by a projection as wide as the queries.
        head_gate: Whether it is gated by one number for each head.
        output_bias: Whether the output matrix has biases.
        sinks: Whether each head has a logit that takes attention away from all keys.
        wide_norm: Whether queries and keys are normalised over all heads together.
        value_dim: Of a head's values; None is that of its keys.
    """

    output_gate: bool = False
    head_gate: bool = False
    output_bias: bool = False
    sinks: bool = False
    wide_norm: bool = False
    value_dim: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertDetails:
    """Say what a layer of experts has in addition to its router and the experts' matrices.

    Attributes:
        shared_ffn_size: Total width of the shared experts, which every token passes.
        shared_gate: Whether a gate weighs the shared experts' output for each token.
        latent_size: Width to which tokens are projected before the experts, and from which they are projected back.
        latent_norm: Whether the experts' output is normalised in that width before it is projected back.
        router_bias: Whether the router has a bias for each expert.
        expert_bias: Whether the experts' matrices have biases.
        extra_norms: Norms of a layer besides those before its parts.
        idle_experts: Experts that the router may choose and that return a token unchanged (LongCat-Flash,
            arXiv:2509.01322, section 2.1).
    """

    shared_ffn_size: int = 0
    shared_gate: bool = False
    latent_size: int | None = None
    latent_norm: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    extra_norms: int = 0
    idle_experts: int = 0


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
    attention_details: AttentionDetails | None = None
    expert_details: ExpertDetails | None = None


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
class CompressedAttention:
    """Hold the sizes of attention over shared and compressed keys (DeepSeek-V4, its report, section 2.3).

    Attributes:
        query_rank: Of compressed queries.
        output_groups, output_rank: Groups of heads that are merged before the output, and the width of each merged.
        window: Tokens that every layer sees as they are, the query's own included.
        sparse_ratio, heavy_ratio: Tokens of a block that is compressed to one vector, where an index chooses among them
            and where all are seen.
        index_heads, index_dim: Heads that choose among compressed vectors, and their size.
        index_entries: Compressed vectors that they choose at most.
    """

    query_rank: int
    output_groups: int
    output_rank: int
    window: int
    sparse_ratio: int
    heavy_ratio: int
    index_heads: int
    index_dim: int
    index_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockIndex:
    """Hold the sizes of what chooses blocks of the cache that grouped attention reads (MiniMax-M3).

    Attributes:
        heads, dim: Of the index, and their size; all share one key of a token.
        block_tokens: Tokens of a block.
        blocks: That a query attends to at most.
    """

    heads: int
    dim: int
    block_tokens: int
    blocks: int


# What of linear attention a rank computes: some heads of whole sequences; with each context-parallel rank's own tokens, all
# heads on each tensor-parallel rank; or all heads of all tokens on every rank of both kinds.
LinearShare = Literal["heads", "tokens", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """Hold the sizes of a gated delta network (Yang et al. 2024, arXiv:2412.06464): one state for each value head.

    Attributes:
        computed: What of it each rank of a layout computes; a trainer's way, not the model's.
        kernel: Tokens of the causal convolution before it.
        full_gate: Whether one matrix makes the output's gate, not two through a head's width (Kimi delta attention).
        full_forget: Whether one matrix makes how much is forgotten, not two through a head's width.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    full_gate: bool = False
    full_forget: bool = False
    computed: LinearShare = "heads"


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
class LayerInputs:
    """Hold the sizes of per-layer embeddings: an input of each layer besides the previous layer's output (Gemma 3n and 4).

    A table gives a vector for each token and layer; the token's embedding, projected, is added to it.

    Attributes:
        size: Width of one layer's vector.
        vocab_size: Rows of the table.
    """

    size: int
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArchitecture:
    """Describe a decoder-only transformer.

    Attributes:
        ffn_size: Width of the (dense) MLP; gated MLPs have three matrices of it.
        num_experts: 0 for a dense model; then every layer is dense.
        moe_ffn_size: Width of one expert's MLP.
        attention: The attention of its layers, the name of a file of `rlplan/parts/`.
        feed_forward: The part after attention; None is `experts` for a model with experts, else `dense-mlp`.
        window: Tokens that attention sees, the token itself included; None where it sees all before it.
        keys_are_values: Whether one projection gives both.
        norms_per_part: Norms of a part; Gemma has one before and one after it.
        vision_parameters: Parameters of the towers for images and sound, which are stored with the embedding.
        tower: Sizes of the tower for images, where they are known.
        sound: The same of the tower for sound.
        layer_inputs: Per-layer embeddings, whose table is stored with the embedding; None without.
        block_layers: Layers of a block in models whose parts choose among the sums of earlier blocks (Kimi-K3's residuals
            over blocks); None for one residual sum.
        streams: Parallel hidden states of a token that layers mix (manifold-constrained hyper-connections, Xie et al.
            2025, arXiv:2512.24880); None for one.
        laurel_rank: Rank of a low-rank layer beside attention (Laurel), in models that compute one stream and predict the
            others (AltUp, Baykal et al. 2023, arXiv:2301.13310: Gemma 3n); None for other models.
        layer_kinds: Kinds of its layers, by free names; None where all layers are alike.
        layer_runs: Its layers in order, by the names of their kinds.
        hugging_face: Ids of the models that have this architecture, in a sheet; empty once it is looked up.
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
    attention: str = GROUPED_ATTENTION
    feed_forward: str | None = None
    window: int | None = None
    keys_are_values: bool | None = None
    norms_per_part: int | None = None
    attention_details: AttentionDetails | None = None
    expert_details: ExpertDetails | None = None
    latent: LatentAttention | None = None
    compressed: CompressedAttention | None = None
    block_index: BlockIndex | None = None
    linear: LinearAttention | None = None
    state_space: StateSpace | None = None
    vision_parameters: int | None = None
    tower: ImageTower | None = None
    sound: SoundTower | None = None
    layer_inputs: LayerInputs | None = None
    block_layers: int | None = None
    streams: int | None = None
    laurel_rank: int | None = None
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

    @property
    def handed_size(self) -> int:
        """Return the width of what one layer hands on to the next of a token: of blocks on average half of all."""
        blocks = 0 if self.block_layers is None else -(-self.num_layers // self.block_layers)
        return (self.streams or 1) * self.hidden_size + blocks * self.hidden_size // 2

    @property
    def mixing_parameters(self) -> int:
        """Return the parameters by which a part takes its input from streams or blocks, and adds its output to streams.

        Those of predicted streams are its feed-forward part's.
        """
        if self.laurel_rank is not None:
            return 0
        if self.streams is None:
            return self.joining_parameters
        weights = (2 + self.streams) * self.streams  # in, out, and from each to each
        return weights * (self.handed_size + 1) + 3  # with a bias each, and three scales

    @property
    def joining_parameters(self) -> int:
        """Return the parameters that join streams or blocks behind the last layer; of blocks a norm and a score.

        Each predicted stream has a matrix of its own.
        """
        if self.laurel_rank is not None:
            return self.parting_parameters
        if self.block_layers is not None:
            return 2 * self.hidden_size
        return 0 if self.streams is None else self.streams * (self.handed_size + 1) + 1

    @property
    def parting_parameters(self) -> int:
        """Return the parameters that make streams of an embedding which are predicted later: a matrix for each but the first."""
        predicted = 0 if self.laurel_rank is None else (self.streams or 1) - 1
        return predicted * self.hidden_size**2

    @property
    def front_parameters(self) -> int:
        """Return the parameters that lie with the embedding: of towers, tables of layers' inputs, matrices of streams."""
        count = (self.vision_parameters or 0) + self.parting_parameters
        inputs = self.layer_inputs
        if inputs is not None:
            width = self.num_layers * inputs.size
            count += (inputs.vocab_size + self.hidden_size) * width + inputs.size
        return count

    def head_parameters(self, head: Head) -> int:
        """Return the parameters after the last layer: final norm and output matrix.

        A tied language-model head owns no matrix; a scalar head (critic, reward) is one row.
        """
        norm = self.hidden_size + self.joining_parameters
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
