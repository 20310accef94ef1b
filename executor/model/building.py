"""Build the pipeline stages of a model, with the weights that a seed gives on any layout."""

import importlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from executor.data.packing import SequenceSlots
from executor.model.attention import KEPT, RECOMPUTED, register_attention
from executor.model.decoding import DecodeStep, decoded, decodes_plainly, is_plain
from rlplan.models.model import Head, ModelArchitecture
from rlplan.plan import Recompute

# Only the modules of a family's definition are imported: all of transformers takes seconds more.
_CONFIG_CLASSES = {
    "llama": "LlamaConfig",
    "mistral": "MistralConfig",
    "mixtral": "MixtralConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "qwen3_moe": "Qwen3MoeConfig",
}
EMBEDDING = "backbone.embed_tokens.weight"
HEAD = "head.weight"


def published_name(parameter: str) -> str:
    """Return the name that published models have for a parameter."""
    return "lm_head.weight" if parameter == HEAD else parameter.replace("backbone.", "model.", 1)


class StageModel(nn.Module):
    """Hold consecutive layers of a transformer; the first stage embeds, the last one has the head.

    Parameters have the same names in any number of stages: `backbone.layers.7.mlp.up_proj.weight`
    is the eighth layer's on any stage.

    Args:
        backbone: A whole transformer, of which this stage takes its part.
        layers: Numbers of its layers.
        head: On the last stage.
        recompute: What the backward pass computes again.
    """

    def __init__(
        self,
        backbone: Any,
        layers: Sequence[int],
        head: nn.Linear | None,
        *,
        first: bool,
        recompute: Recompute = "none",
    ) -> None:
        super().__init__()
        self.backbone = nn.Module()
        if first:
            self.backbone.embed_tokens = backbone.embed_tokens
        self.backbone.layers = nn.ModuleDict(
            {str(index): backbone.layers[index] for index in layers}
        )
        if head is not None:
            self.backbone.norm, self.head = backbone.norm, head
        self.backbone.rotary_emb = backbone.rotary_emb
        self.first, self.last, self._recompute = first, head is not None, recompute
        self._numbered = tuple((index, backbone.layers[index]) for index in layers)
        self._all_plain = all(is_plain(layer) for _, layer in self._numbered)
        self.hidden_size = int(backbone.config.hidden_size)

    @property
    def layers(self) -> dict[int, nn.Module]:
        """Return this stage's layers by their number in the model."""
        return dict(self._numbered)

    def forward(
        self,
        inputs: Tensor,
        attention: Tensor | SequenceSlots | None,
        positions: Tensor,
        cache: Any = None,
        *,
        only_last: bool = False,
    ) -> Tensor:
        """Return hidden states (B, T, hidden), or on the last stage the head's outputs.

        Args:
            inputs: Tokens (B, T) on the first stage, else hidden states.
            attention: The packed sequences; or True where a query attends a key, (B, 1, T, keys).
            positions: Position of each token in its sequence. Shape (B, T).
            cache: Keys and values of earlier tokens, which the pass extends.
            only_last: Whether the head reads the last position only.
        """
        parts: Any = self.backbone
        hidden = parts.embed_tokens(inputs) if self.first else inputs
        angles = parts.rotary_emb(hidden, position_ids=positions)
        one_token = cache is not None and decodes_plainly(hidden)
        if one_token and self._all_plain and not isinstance(attention, SequenceSlots):
            step = DecodeStep(angles, attention)  # a decode step comes with a mask, if with any
            hidden = decoded([layer for _, layer in self._numbered], hidden, step, cache)
            return self._read(hidden, only_last=only_last)
        for number, layer in self._numbered:
            run = self._recomputed(layer) if self._repeats(number) else layer
            hidden = run(
                hidden,
                attention_mask=attention,
                position_ids=positions,
                past_key_values=cache,
                use_cache=cache is not None,
                position_embeddings=angles,
            )
        return self._read(hidden, only_last=only_last)

    def _read(self, hidden: Tensor, *, only_last: bool) -> Tensor:
        """Return hidden states as they are, or on the last stage the head's outputs."""
        if not self.last:
            return hidden
        parts: Any = self.backbone
        normed = parts.norm(hidden[:, -1:] if only_last else hidden)
        outputs: Tensor = self.head(normed)
        return outputs

    def _repeats(self, number: int) -> bool:
        if not torch.is_grad_enabled():
            return False
        return self._recompute == "full" or (self._recompute == "alternate" and number % 2 == 0)

    @staticmethod
    def _recomputed(layer: nn.Module) -> Callable[..., Tensor]:
        def run(hidden: Tensor, **settings: Any) -> Tensor:
            result: Tensor = checkpoint(
                layer, hidden, use_reentrant=False, preserve_rng_state=False, **settings
            )
            return result

        return run


def stage_layers(num_layers: int, stages: int) -> tuple[range, ...]:
    """Return the layers of each stage; where they do not divide evenly, the first get one more."""
    whole, rest = divmod(num_layers, stages)
    bounds = [whole * stage + min(stage, rest) for stage in range(stages + 1)]
    return tuple(range(*pair) for pair in pairwise(bounds))


def build_stages(
    architecture: ModelArchitecture,
    head: Head,
    seed: int,
    *,
    random_head: bool = False,
    stages: int = 1,
    held: Sequence[int] = (0,),
    recompute: Recompute = "none",
) -> tuple[StageModel, ...]:
    """Return stages of a model on the host in fp32, the same weights for the same seed.

    Matrices get the family's own initialisation. A tied head that is not on the stage of
    its embedding is a copy of it.

    Args:
        random_head: Whether a scalar head is random, so that scores of a fresh model have a spread
            near one; a critic's starts at zero, so that its first values are unbiased.
        stages: Into how many stages the model is cut.
        held: Which of them are returned.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = _backbone(architecture, recompute)
        projection = _head(architecture, head, backbone)
    if head == "scalar" and random_head:
        _randomize(projection, seed)
    parts = stage_layers(architecture.num_layers, stages)
    made = []
    for stage in held:
        last = stage == stages - 1
        if last and head == "lm" and architecture.tied_embeddings and 0 not in held:
            projection.weight = nn.Parameter(projection.weight.detach().clone())
        made.append(
            StageModel(
                backbone,
                parts[stage],
                projection if last else None,
                first=stage == 0,
                recompute=recompute,
            )
        )
    _number_for_cache(made)
    return tuple(made)


def _number_for_cache(stages: Sequence[StageModel]) -> None:
    """Count a rank's layers from 0, as its key-value cache holds them."""
    layers = [layer for stage in stages for layer in stage.layers.values()]
    for index, layer in enumerate(layers):
        layer.self_attn.layer_idx = index  # type: ignore[union-attr]


def _head(architecture: ModelArchitecture, head: Head, backbone: Any) -> nn.Linear:
    width = architecture.vocab_size if head == "lm" else 1
    projection = nn.Linear(architecture.hidden_size, width, bias=False)
    if head == "lm" and architecture.tied_embeddings:
        projection.weight = backbone.embed_tokens.weight
    elif head == "lm":
        nn.init.normal_(projection.weight, std=0.02)
    else:
        nn.init.zeros_(projection.weight)
    return projection


def _randomize(head: nn.Linear, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        noise = torch.randn(1, head.in_features, generator=generator) / head.in_features**0.5
        head.weight.copy_(noise)


def _backbone(architecture: ModelArchitecture, recompute: Recompute) -> Any:
    register_attention()
    family = architecture.family
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    config = family_config(architecture)
    # The one way that needs no download check.
    config._attn_implementation = RECOMPUTED if recompute == "selective" else KEPT  # noqa: SLF001
    # Experts one by one: the same on any device, and on slices of them.
    config._experts_implementation = "eager"  # noqa: SLF001
    backbone = getattr(module, f"{_CONFIG_CLASSES[family].removesuffix('Config')}Model")(config)
    return backbone.float()


def causal_lm_class(architecture: ModelArchitecture) -> Any:
    """Return the class of `transformers` for language models of an architecture's family."""
    family = architecture.family
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    return getattr(module, f"{_CONFIG_CLASSES[family].removesuffix('Config')}ForCausalLM")


def family_config(architecture: ModelArchitecture) -> Any:
    """Return the configuration of `transformers` that an architecture means."""
    family = architecture.family
    module = importlib.import_module(f"transformers.models.{family}.configuration_{family}")
    return getattr(module, _CONFIG_CLASSES[family])(
        hidden_size=architecture.hidden_size,
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
        **_mlp_sizes(architecture),
    )


def _mlp_sizes(architecture: ModelArchitecture) -> dict[str, Any]:
    """Return the sizes of MLPs or experts in a family's config."""
    if not architecture.num_experts:
        return {"intermediate_size": architecture.ffn_size}
    sizes: dict[str, Any] = {"num_experts_per_tok": architecture.experts_per_token}
    if architecture.family == "mixtral":
        return sizes | {
            "num_local_experts": architecture.num_experts,
            "intermediate_size": architecture.moe_ffn_size,
        }
    return sizes | {
        "num_experts": architecture.num_experts,
        "moe_intermediate_size": architecture.moe_ffn_size,
        "norm_topk_prob": True,  # as the published models of the family have it
    }
