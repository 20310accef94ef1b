"""What a family of models has beside what its config.json says, and what makes a model's sizes impossible."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from rlplan.files.decoding import read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.models.model import ModelArchitecture
from rlplan.profiles.sheets import sheet_names

_POSITIVE = (
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "ffn_size",
    "vocab_size",
    "max_positions",
)

# Beyond any model of today by a factor of ten and of a hundred; a slip of the keyboard is larger still.
MOST_LAYERS = 4096
MOST_PARAMETERS = 10**15

# More than ten times the widest of today: 20,480 of MT-NLG 530B (Smith et al. 2022, arXiv:2201.11990).
MOST_HIDDEN_SIZE = 2**18


class ArchitectureFault(NamedTuple):
    """Name the field that is wrong, what is wrong with it, and what would be right."""

    field: str
    problem: str
    allowed: str


def architecture_fault(model: ModelArchitecture) -> ArchitectureFault | None:
    """Return the first thing that is wrong with a model's sizes, or None."""
    for field in _POSITIVE:
        if getattr(model, field) < 1:
            return ArchitectureFault(field, "must be at least 1", "a whole number from 1")
    if model.num_heads % model.num_kv_heads:
        return ArchitectureFault(
            "num_kv_heads",
            f"does not divide the {model.num_heads} query heads",
            f"a divisor of {model.num_heads}",
        )
    if model.family not in family_names():
        return ArchitectureFault("family", "is not known", ", ".join(family_names()))
    return _layers_fault(model) or _expert_fault(model) or _size_fault(model)


def _size_fault(model: ModelArchitecture) -> ArchitectureFault | None:
    """Return what makes a model larger than there can be, counted by its widest matrices."""
    if model.num_layers > MOST_LAYERS:
        return ArchitectureFault("num_layers", "is too many", f"at most {MOST_LAYERS:,}")
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    widths = {
        "ffn_size": model.ffn_size,
        "num_experts": model.num_experts * model.moe_ffn_size,
        "num_heads": heads,
        "vocab_size": model.vocab_size / model.num_layers,
    }
    field = max(widths, key=lambda name: widths[name])
    parameters = model.num_layers * model.hidden_size * widths[field]
    tower = model.vision_parameters or 0
    if tower > parameters:
        field, parameters = "vision_parameters", tower
    if parameters <= MOST_PARAMETERS:
        if model.hidden_size <= MOST_HIDDEN_SIZE:
            return None
        return ArchitectureFault("hidden_size", "is too large", f"at most {MOST_HIDDEN_SIZE:,}")
    problem = f"gives about {parameters:.0e} parameters with the other sizes"
    return ArchitectureFault(field, problem, f"at most {MOST_PARAMETERS:.0e} parameters")


def _layers_fault(model: ModelArchitecture) -> ArchitectureFault | None:
    """Return what is wrong with layers of unlike kinds: both fields or neither, known names, all layers."""
    kinds, runs = model.layer_kinds, model.layer_runs
    if (kinds is None) != (runs is None):
        missing = "layer_kinds" if kinds is None else "layer_runs"
        return ArchitectureFault(missing, "is missing", "layer_kinds and layer_runs together")
    if kinds is None or runs is None:
        return None
    for name in (name for run in runs for name in run.kinds):
        if name not in kinds:
            problem = f"names {name!r}, which is no kind of layer"
            return ArchitectureFault("layer_runs", problem, ", ".join(kinds))
    layers = sum(run.count * len(run.kinds) for run in runs)
    if layers != model.num_layers:
        problem = f"has {layers} layers, and num_layers says {model.num_layers}"
        return ArchitectureFault("layer_runs", problem, f"{model.num_layers} layers together")
    return None


def _expert_fault(model: ModelArchitecture) -> ArchitectureFault | None:
    if model.num_experts < 0:
        return ArchitectureFault("num_experts", "must not be negative", "0 for a dense model")
    if not model.num_experts:
        return None
    if not 1 <= model.experts_per_token <= model.num_experts:
        problem = f"must lie between 1 and the {model.num_experts} experts"
        return ArchitectureFault("experts_per_token", problem, f"1 to {model.num_experts}")
    if model.moe_ffn_size < 1:
        return ArchitectureFault("moe_ffn_size", "must be at least 1", "a whole number from 1")
    return None


FOLDER = Path(__file__).parents[2] / "families"

Saying = bool | str


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraits:
    """Say how the config of a family is read; what is said as a text is the key that tells it.

    Attributes:
        like: A family with the same traits, which says all the rest.
        source: Where the traits were read.
        qkv_bias, output_bias: Whether attention's projections have biases.
        qk_norm: Whether queries and keys are normalised, with weights.
        gated_mlp: Whether networks have three matrices, not two.
        experts: Key of the number of experts; None where there are none.
        experts_chosen: Key of the experts that a token goes to.
        expert_width, dense_width: Keys of the inner widths.
        shared_width: Key of the shared experts' width; with `shared_experts` one expert's is taken so often.
        shared_experts: Key of the number of shared experts.
        beside_dense: Whether the dense network stays beside the experts, as a shared one.
        latent_attention: Whether keys and values are compressed.
        others_attend: How layers attend that do not attend to everything.
        full_every, full_every_key: Every so manieth layer attends to everything, where `layer_types` is silent.
        single_parts: Whether a layer is one part, told by a pattern of letters or names.
        vision: Whether it takes images, or images and sound.
        defaults: What the configuration's class takes where the file is silent.
        understood: Keys that change nothing of parameters, memory and time.
    """

    like: str | None = None
    source: str
    qkv_bias: Saying = False
    output_bias: Saying = False
    qk_norm: Saying = False
    wide_norm: bool = False
    output_gate: bool = False
    sinks: bool = False
    norms_per_part: int | None = None
    gated_mlp: bool = True
    experts: str | None = None
    experts_chosen: str = "num_experts_per_tok"
    expert_width: str = "moe_intermediate_size"
    dense_width: str = "intermediate_size"
    shared_width: str | None = None
    shared_experts: str | None = None
    beside_dense: bool = False
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    extra_norms: int = 0
    latent_attention: bool = False
    others_attend: Literal["sliding", "chunked", "linear"] | None = None
    full_every: int = 1
    full_every_key: str | None = None
    single_parts: bool = False
    vision: bool = False
    defaults: FrozenDict[str, int | float | bool] = FrozenDict()
    understood: tuple[str, ...] = ()


def family_names() -> tuple[str, ...]:
    """Return the `model_type` of every family that is known, sorted."""
    return sheet_names("families")


@cache
def load_family(name: str) -> FamilyTraits:
    """Return the traits of a known family.

    Raises:
        FileError: The file is broken.
    """
    traits = read_yaml(FamilyTraits, FOLDER / f"{name}.yaml")
    return load_family(traits.like) if traits.like else traits
