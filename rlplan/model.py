"""What a transformer is made of, as far as costs, memory and execution need to know."""

from dataclasses import dataclass
from typing import Literal

Head = Literal["lm", "scalar"]
Family = Literal["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArchitecture:
    """Describe a decoder-only transformer.

    Attributes:
        ffn_size: Width of the (dense) MLP; gated MLPs have three matrices of it.
        num_experts: 0 for a dense model; then every layer is dense.
        moe_ffn_size: Width of one expert's MLP.
        attention: The kind of part of its layers that attends, a file of `rlplan/parts/`.
        feed_forward: The kind of part behind it; None is `experts` where it has any, else `dense-mlp`.
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
