"""Build a model from its architecture, with the weights that a seed gives on any layout."""

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from rlplan.model import Head, ModelArchitecture

# Only the modules of a family's definition are imported: all of transformers takes seconds more.
_CONFIG_CLASSES = {
    "llama": "LlamaConfig",
    "mistral": "MistralConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
}


class HeadedModel(nn.Module):
    """Put a language-model or a scalar head on a transformer's last hidden states."""

    def __init__(self, backbone: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def hidden(self, tokens: Tensor, mask: Tensor, positions: Tensor, cache: Any = None) -> Tensor:
        """Return the last hidden states. Shape (B, T, hidden).

        Args:
            tokens: Shape (B, T).
            mask: True where a query attends a key. Shape (B, 1, T, keys).
            positions: Position of each token in its sequence. Shape (B, T).
            cache: Keys and values of earlier tokens, which the pass extends.
        """
        output = self.backbone(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        states: Tensor = output.last_hidden_state
        return states


def build_model(architecture: ModelArchitecture, head: Head, seed: int) -> HeadedModel:
    """Return the whole model on the host in fp32, the same for the same seed.

    Matrices are drawn with the family's own initialisation. A critic's scalar head starts at
    zero, so that the first values are unbiased; `randomize_scalar_head` draws a reward model's.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = _backbone(architecture)
        width = architecture.vocab_size if head == "lm" else 1
        projection = nn.Linear(architecture.hidden_size, width, bias=False)
        if head == "lm" and architecture.tied_embeddings:
            projection.weight = backbone.embed_tokens.weight
        elif head == "lm":
            nn.init.normal_(projection.weight, std=0.02)
        else:
            nn.init.zeros_(projection.weight)
    return HeadedModel(backbone, projection)


def randomize_scalar_head(model: HeadedModel, seed: int) -> None:
    """Draw a scalar head whose scores of a fresh model have a spread near one."""
    generator = torch.Generator().manual_seed(seed)
    width = model.head.in_features
    with torch.no_grad():
        draws = torch.randn(1, width, generator=generator) / width**0.5
        model.head.weight.copy_(draws)


def _backbone(architecture: ModelArchitecture) -> Any:
    family = architecture.family
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    config = _config(architecture)
    backbone = getattr(module, f"{_CONFIG_CLASSES[family].removesuffix('Config')}Model")(config)
    return backbone.float()


def _config(architecture: ModelArchitecture) -> Any:
    family = architecture.family
    module = importlib.import_module(f"transformers.models.{family}.configuration_{family}")
    config = getattr(module, _CONFIG_CLASSES[family])(
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.ffn_size,
        num_hidden_layers=architecture.num_layers,
        num_attention_heads=architecture.num_heads,
        num_key_value_heads=architecture.num_kv_heads,
        head_dim=architecture.head_dim,
        vocab_size=architecture.vocab_size,
        max_position_embeddings=architecture.max_positions,
        tie_word_embeddings=architecture.tied_embeddings,
        rms_norm_eps=architecture.norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": architecture.rope_theta},
        pad_token_id=None,
    )
    config._attn_implementation = "sdpa"  # noqa: SLF001  # the one way that needs no download check
    return config
