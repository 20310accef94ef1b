"""What a device computes and exchanges: operators, the part of a model that it has, and its tokens.

Bytes count each tensor once per kernel that reads or writes it, kernels fused as training engines fuse them.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

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
    """Exchange a tensor of `num_bytes` (in full) within the group."""

    name: str
    kind: CollectiveKind
    num_bytes: float
    group: Group = "tp"


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
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    expert_tp: int = 0
    context_exchange: ContextExchange = "gather"
    value_bytes: int = 2
    sequence_parallel: bool = False

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


class KeptBatch(NamedTuple):
    """Describe a micro-batch that layers keep something of for its backward pass.

    Attributes:
        shard: The device's part of the model.
        fused_attention: Whether attention never writes its scores.
        shared_tokens: Tokens of prompts that samples share, so that it computes so many fewer. Attention spreads
            queries, keys and values to all sequences, and keeps them so.
    """

    shard: Shard
    sequences: int
    sequence_tokens: int
    fused_attention: bool
    shared_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Return the tokens that one context-parallel rank computes."""
        return -(-(self.sequences * self.sequence_tokens - self.shared_tokens) // self.shard.cp)

    @property
    def spread_tokens(self) -> int:
        """Return the same with every sample's own copy of a shared prompt."""
        return -(-self.sequences * self.sequence_tokens // self.shard.cp)
