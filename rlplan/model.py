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
    source: str = ""

    @property
    def attention_parameters(self) -> int:
        """Return the parameters of one layer's attention: QKV, output, biases, QK norms."""
        q = self.num_heads * self.head_dim
        kv = self.num_kv_heads * self.head_dim
        count = self.hidden_size * (q + 2 * kv) + q * self.hidden_size
        if self.qkv_bias:
            count += q + 2 * kv
        if self.qk_norm:
            count += 2 * self.head_dim
        return count

    @property
    def mlp_parameters(self) -> int:
        """Return the parameters of one layer's MLP, all experts and the router included."""
        matrices = 3 if self.gated_mlp else 2
        if self.num_experts:
            return self.num_experts * matrices * self.hidden_size * self.moe_ffn_size + (
                self.num_experts * self.hidden_size
            )
        return matrices * self.hidden_size * self.ffn_size

    @property
    def active_mlp_parameters(self) -> int:
        """Return the MLP parameters that one token passes through."""
        if not self.num_experts:
            return self.mlp_parameters
        matrices = 3 if self.gated_mlp else 2
        return self.experts_per_token * matrices * self.hidden_size * self.moe_ffn_size + (
            self.num_experts * self.hidden_size
        )

    @property
    def layer_parameters(self) -> int:
        """Return the parameters of one layer: attention, MLP and two norms."""
        return self.attention_parameters + self.mlp_parameters + 2 * self.hidden_size

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

    def num_parameters(self, head: Head = "lm") -> int:
        """Return all parameters with a language-model or a scalar head."""
        return (
            self.embedding_parameters
            + self.num_layers * self.layer_parameters
            + self.head_parameters(head)
        )

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Return the KV-cache bytes of one token over all layers on one device (no sharding)."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value
