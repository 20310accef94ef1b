"""Models of `transformers` built stage by stage: families, their configurations, parts of a rank.

Names of parameters are those that are published.
"""

import importlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from rlplan.errors import FileError
from rlplan.executor.data.packing import SequenceSlots
from rlplan.executor.data.remote_folders import fetched_folder
from rlplan.executor.model.attention import attention_of
from rlplan.executor.model.fused_projections import split_fused_projections
from rlplan.files.decoding import is_url, load_json
from rlplan.job import RANDOM, Job
from rlplan.models import CONFIG_FILE, Head, ModelArchitecture
from rlplan.plan import Recompute
from rlplan.rules.rule import listed

# Families whose pre-trained models run here: the folder in `transformers`, and what its classes' names begin with.
PRETRAINED_FAMILIES = {
    "ernie4_5": ("ernie4_5", "Ernie4_5"),
    "gemma2": ("gemma2", "Gemma2"),
    "gemma3_text": ("gemma3", "Gemma3Text"),
    "glm4": ("glm4", "Glm4"),
    "glm4_moe": ("glm4_moe", "Glm4Moe"),
    "llama": ("llama", "Llama"),
    "ministral3": ("ministral3", "Ministral3"),
    "mistral": ("mistral", "Mistral"),
    "mixtral": ("mixtral", "Mixtral"),
    "olmo2": ("olmo2", "Olmo2"),
    "olmo3": ("olmo3", "Olmo3"),
    "phi3": ("phi3", "Phi3"),
    "qwen2": ("qwen2", "Qwen2"),
    "qwen2_moe": ("qwen2_moe", "Qwen2Moe"),
    "qwen3": ("qwen3", "Qwen3"),
    "qwen3_moe": ("qwen3_moe", "Qwen3Moe"),
    "seed_oss": ("seed_oss", "SeedOss"),
    "smollm3": ("smollm3", "SmolLM3"),
}
# Families with a tower of images before a text model, which runs alone here: what its configuration's class is called, and the text
# models' families. The tower is neither read nor trained; it is exported as it was.
BEHIND_TOWERS = {
    "gemma3": ("Gemma3", ("gemma3_text",)),
    "mistral3": ("Mistral3", ("mistral", "ministral3")),
}
# Those that an architecture alone says enough of.
FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
# Classes whose names do not follow from the others'.
_CAUSAL = {"gemma3_text": "Gemma3ForCausalLM"}


def model_config(job: Job, role: str) -> Any:
    """Return the `transformers` configuration of a role's model: from its folder, or else from its architecture.

    Raises:
        FileError: The folder has none, or its family does not run here.
    """
    folder = weights_folder(job, role)
    return family_config(job.architecture(role)) if folder is None else read_config(folder)


def weights_folder(job: Job, role: str) -> Path | None:
    """Return the folder that a role's weights are read from; None where they are random.

    The folder of a URL is fetched to this machine first, unless that was done before.

    Raises:
        FileError: It cannot be fetched.
    """
    source = job.weights_of(role)
    if source is None or source == RANDOM:
        return None
    return fetched_folder(source, f"weights.{role}") if is_url(source) else Path(source)


def read_config(folder: Path) -> Any:
    """Return the configuration in the folder of a pre-trained model; behind a tower that of the text model.

    Raises:
        FileError: There is none, or its family does not run here.
    """
    path = folder / CONFIG_FILE
    config = load_json(path)
    family = config.get("model_type") if isinstance(config, dict) else None
    if family not in PRETRAINED_FAMILIES and family not in BEHIND_TOWERS:
        runs = listed((*PRETRAINED_FAMILIES, *BEHIND_TOWERS))
        raise FileError(
            str(path),
            "is of no family that runs here",
            field="model_type",
            value=family,
            allowed=runs,
        )
    try:
        if family in BEHIND_TOWERS:
            return _text_config(path, family, config)
        return _class_of(family, "configuration", "Config").from_dict(config)
    except FileError:
        raise
    except Exception as error:  # noqa: BLE001  # of many kinds, as `transformers` checks what it reads
        problem = " ".join(str(error).split())
        raise FileError(str(path), f"is not understood: {problem}") from None


def _text_config(path: Path, family: str, config: Mapping[str, Any]) -> Any:
    """Return the configuration of the text model behind a tower, whose head is the whole model's.

    Raises:
        FileError: It is of a family that does not run behind this tower.
    """
    prefix, families = BEHIND_TOWERS[family]
    whole = getattr(_module(family, "configuration"), f"{prefix}Config").from_dict(config)
    text = whole.text_config
    if text.model_type not in families:
        problem, field = "is of no family that runs here", "text_config.model_type"
        allowed = listed(families)
        raise FileError(str(path), problem, field=field, value=text.model_type, allowed=allowed)
    # Files of before version 5 of `transformers` say nothing, and then the text model's class does; who says no has a matrix of its own.
    told = [each.get(TIED) for each in (config, config.get("text_config") or {})]
    told = [each for each in told if each is not None]
    text.tie_word_embeddings = all(told) if told else text.tie_word_embeddings
    text.quantization_config = getattr(whole, "quantization_config", None)
    return text


def has_tower(folder: Path) -> bool:
    """Tell whether the model of a folder has a tower before its text model.

    Raises:
        FileError: It has no configuration.
    """
    config = load_json(folder / CONFIG_FILE)
    return isinstance(config, dict) and config.get("model_type") in BEHIND_TOWERS


def backbone_class(config: Any) -> Any:
    """Return the class of a configuration's transformer without a head."""
    return _class_of(config.model_type, "modeling", "Model")


def causal_lm_class(config: Any) -> Any:
    """Return the class of a configuration's language model."""
    name = _CAUSAL.get(config.model_type)
    folder, prefix = PRETRAINED_FAMILIES[config.model_type]
    return getattr(_module(folder, "modeling"), name or f"{prefix}ForCausalLM")


def family_config(architecture: ModelArchitecture) -> Any:
    """Return the configuration of `transformers` that an architecture means."""
    return _class_of(architecture.family, "configuration", "Config")(
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
        **({"sliding_window": architecture.window} if architecture.family == "mistral" else {}),
        **_mlp_sizes(architecture),
    )


def _class_of(family: str, module: str, suffix: str) -> Any:
    folder, prefix = PRETRAINED_FAMILIES[family]
    return getattr(_module(folder, module), f"{prefix}{suffix}")


def _module(folder: str, kind: str) -> Any:
    # Only the modules of a family's definition are imported: all of transformers takes seconds more.
    return importlib.import_module(f"transformers.models.{folder}.{kind}_{folder}")


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


def write_model(folder: Path, architecture: ModelArchitecture, seed: int) -> None:
    """Write a model's configuration and weights, in bf16 as most are published; nothing where a part of it fails.

    Args:
        folder: Is made; what is there already stays, and nothing is written.
    """
    if folder.exists():
        return
    config = family_config(architecture)
    config.dtype = torch.bfloat16
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = causal_lm_class(config)(config).to(torch.bfloat16)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        draw_no_bars()
        model.save_pretrained(made)
        made.chmod(0o755)  # temporary folders are their owner's alone
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def draw_no_bars() -> None:
    """Keep transformers from drawing progress bars: the terminal is the command's."""
    logging = importlib.import_module("transformers.utils.logging")
    logging.disable_progress_bar()


MISTRAL = "MistralDecoderLayer"
PLAIN_LAYERS = (
    "LlamaDecoderLayer",
    MISTRAL,
    "Qwen2DecoderLayer",
    "Qwen3DecoderLayer",
    "Qwen3MoeDecoderLayer",
)


def decodes_plainly(hidden: Tensor) -> bool:
    """Tell whether a pass is one token of each sequence in fp32 on a CPU, with plain tensors as weights.

    Weights that ranks share out come with hooks, which keep to passes outside inference mode.

    Args:
        hidden: Shape (B, T, hidden).
    """
    return (
        hidden.shape[1] == 1
        and hidden.device.type == "cpu"
        and hidden.dtype == torch.float32
        and torch.is_inference_mode_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


class DecodeStep:
    """Hold what all layers of a step share: angles by position, and which keys are attended.

    Args:
        angles: Cosines and sines of each sequence's position, each (B, 1, head_dim).
        attended: True where a sequence attends a key, (B, 1, 1, T); None: all of them.
    """

    def __init__(self, angles: tuple[Tensor, Tensor], attended: Tensor | None) -> None:
        self._cosines, sines = angles
        self._half = sines.shape[-1] // 2
        # Turning takes (-x2, x1) times the sine: halves swapped, and the first half's sine negated.
        self._sines = torch.cat((-sines[..., : self._half], sines[..., self._half :]), dim=-1)
        self._bias: Tensor | None = None
        if attended is not None:
            self._bias = torch.zeros(attended.shape).masked_fill_(~attended, -torch.inf)[:, 0]

    def turned(self, heads: Tensor) -> Tensor:
        """Return queries or keys turned by their position (rotary embedding). Shape (B, heads, head_dim)."""
        return heads * self._cosines + heads.roll(self._half, -1) * self._sines

    def attention(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Return the attention's output (B, heads x head_dim) of one query a sequence.

        The heads that share keys and values are the rows of one product with them.

        Args:
            query: Shape (B, heads, head_dim).
            keys: Shape (B, key-value heads, T, head_dim).
            values: Shape (B, key-value heads, T, head_dim).
        """
        batch, heads, width = query.shape
        queries = (query * scaling).view(batch * keys.shape[1], -1, width)
        weights = torch.bmm(queries, keys.flatten(0, 1).transpose(1, 2))
        if self._bias is not None:
            weights = (weights.view(batch, heads, -1) + self._bias).view(weights.shape)
        return torch.bmm(weights.softmax(dim=-1), values.flatten(0, 1)).view(batch, heads * width)


def decoded(layers: Sequence[Any], hidden: Tensor, step: DecodeStep, cache: Any) -> Tensor:
    """Return hidden states behind layers of grouped attention and gated MLPs. Shape (B, 1, hidden).

    Args:
        hidden: Of one token of each sequence. Shape (B, 1, hidden).
        cache: Keys and values of earlier tokens, which the pass extends.
    """
    rows = hidden[:, 0]
    for layer in layers:
        attention, mlp = layer.self_attn, layer.mlp
        shape = (len(rows), -1, attention.head_dim)
        normed = _normed(rows, layer.input_layernorm)
        query, key, value = (
            project(normed).view(shape)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if hasattr(attention, "q_norm"):
            query, key = _normed(query, attention.q_norm), _normed(key, attention.k_norm)
        keys, values = cache.update(
            step.turned(key).unsqueeze(2), value.unsqueeze(2), attention.layer_idx
        )
        read = step.attention(step.turned(query), keys, values, attention.scaling)
        rows = rows + attention.o_proj(read)
        normed = _normed(rows, layer.post_attention_layernorm)
        rows = rows + mlp.down_proj(mlp.act_fn(mlp.gate_proj(normed)) * mlp.up_proj(normed))
    return rows.unsqueeze(1)


def is_plain(layer: nn.Module) -> bool:
    """Tell whether a layer is grouped attention to all keys and a gated MLP, each behind a norm, and nothing else."""
    if type(layer).__name__ not in PLAIN_LAYERS or hasattr(layer.mlp, "experts"):
        return False
    attention: Any = layer.self_attn
    window = getattr(attention, "sliding_window", None)
    if type(layer).__name__ == MISTRAL:  # whose layers ask the configuration
        window = attention.config.sliding_window
    return window is None


def _normed(rows: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(rows, norm.weight.shape, norm.weight, norm.variance_epsilon)


# A router's bias by which experts are chosen, and not weighed: no gradient trains it, so it stays as its folder has it.
ROUTER_BIAS = "e_score_correction_bias"
EMBEDDING = "backbone.embed_tokens.weight"
TIED = "tie_word_embeddings"
HEAD = "head.weight"
OFFLOADED = "full-offload"


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
        # Positions turn queries and keys in one way, or in one for each kind of layer.
        kinds = getattr(backbone.rotary_emb, "layer_types", None)
        self._kinds = tuple(backbone.config.layer_types) if kinds else ()
        self._cap: float | None = getattr(backbone.config, "final_logit_softcapping", None)
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
        angles = self._angles(hidden, positions)
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
                position_embeddings=angles[self._kinds[number]] if self._kinds else angles,
            )
        return self._read(hidden, only_last=only_last)

    def _angles(self, hidden: Tensor, positions: Tensor) -> Any:
        """Return cosines and sines of positions, or these by kind of layer."""
        rotary: Any = self.backbone.rotary_emb
        if not self._kinds:
            return rotary(hidden, position_ids=positions)
        held = sorted({self._kinds[number] for number, _ in self._numbered})
        return {kind: rotary(hidden, position_ids=positions, layer_type=kind) for kind in held}

    @property
    def router_biases(self) -> dict[str, nn.Module]:
        """Return the routers of this stage that have a bias which no gradient trains, by its name."""
        named = ((name, each) for name, each in self.named_modules() if hasattr(each, ROUTER_BIAS))
        return {f"{name}.{ROUTER_BIAS}": each for name, each in named}

    def make_real(self, device: torch.device) -> None:
        """Give parameters that have none memory on a device; what is in it is written later."""
        self.to_empty(device=device)
        self.make_buffers(device)

    def make_buffers(self, device: torch.device) -> None:
        """Compute on a device what the configuration says and no file holds."""
        rotary: Any = self.backbone.rotary_emb
        self.backbone.rotary_emb = type(rotary)(rotary.config).to(device)
        embedding: Any = self.backbone.embed_tokens if self.first else None
        if hasattr(embedding, "scalar_embed_scale"):
            scale = torch.tensor(embedding.scalar_embed_scale, device=device)
            embedding.register_buffer("embed_scale", scale, persistent=False)

    def _read(self, hidden: Tensor, *, only_last: bool) -> Tensor:
        """Return hidden states as they are, or on the last stage the head's outputs."""
        if not self.last:
            return hidden
        parts: Any = self.backbone
        normed = parts.norm(hidden[:, -1:] if only_last else hidden)
        outputs: Tensor = self.head(normed)
        if self._cap is not None and self.head.out_features > 1:
            outputs = self._cap * (outputs / self._cap).tanh()
        return outputs

    def _repeats(self, number: int) -> bool:
        if not torch.is_grad_enabled():
            return False
        if self._recompute == "alternate":
            return number % 2 == 0
        return self._recompute in ("full", OFFLOADED)

    def _input_kept(self, hidden: Tensor) -> AbstractContextManager[Any]:
        """Return the context in which a layer's input is kept: where it is, or in host memory.

        On a CPU both are the same, and nothing is copied.
        """
        if self._recompute != OFFLOADED:
            return nullcontext()
        return save_on_cpu(pin_memory=hidden.is_cuda)

    def _recomputed(self, layer: nn.Module) -> Callable[..., Tensor]:
        def run(hidden: Tensor, **settings: Any) -> Tensor:
            with self._input_kept(hidden):
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


def build_stages(  # noqa: PLR0913 -- all that a model depends on
    architecture: ModelArchitecture,
    head: Head,
    seed: int,
    *,
    folder: Path | None = None,
    random_head: bool = False,
    stages: int = 1,
    held: Sequence[int] = (0,),
    recompute: Recompute = "none",
    kernels_of: torch.device | None = None,
) -> tuple[StageModel, ...]:
    """Return stages of a model on the host in fp32, the same weights for the same seed.

    Matrices get the family's own initialisation; those of a pre-trained model get no memory yet.
    A tied head that is not on the stage of its embedding is a copy of it.

    Args:
        folder: Of a pre-trained model, whose configuration says what is built; None: the architecture does.
        random_head: Whether a scalar head is random, so that scores of a fresh model have a spread
            near one; a critic's starts at zero, so that its first values are unbiased.
        stages: Into how many stages the model is cut.
        held: Which of them are returned.
        kernels_of: Device on which passes in bf16 may take kernels of its own; None: passes in fp32.
    """
    config = family_config(architecture) if folder is None else read_config(folder)
    attention = attention_of(config, kernels_of, recomputed=recompute == "selective")
    with torch.random.fork_rng(devices=[]), torch.device("cpu" if folder is None else "meta"):
        torch.manual_seed(seed)
        backbone = _backbone(config, attention)
        projection = _head(architecture, head, backbone)
    if head == "scalar" and random_head and folder is None:
        with torch.no_grad():
            start = scalar_head(torch.device("cpu"), architecture.hidden_size, seed, zero=False)
            projection.weight.copy_(start)
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


def scalar_head(device: torch.device, width: int, seed: int, *, zero: bool) -> Tensor:
    """Return a scalar head that starts at zero, or at random with outputs of a spread near one. (1, width)."""
    if zero:
        return torch.zeros(1, width, device=device)
    generator = torch.Generator().manual_seed(seed)
    start: Tensor = torch.randn(1, width, generator=generator) / width**0.5
    return start.to(device)


def _backbone(config: Any, attention: str) -> Any:
    # The one way that needs no download check.
    config._attn_implementation = attention  # noqa: SLF001
    # Experts one by one: the same on any device, and on slices of them.
    config._experts_implementation = "eager"  # noqa: SLF001
    backbone = backbone_class(config)(config)
    # Else the gradient of that token's row is left out, in some layouts.
    backbone.embed_tokens.padding_idx = None
    split_fused_projections(backbone)
    # Without dropout: what is learnt from is what was sampled.
    return backbone.float().eval()
