"""What makes a model's sizes impossible."""

from typing import NamedTuple

from rlplan.models import ModelArchitecture
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
    families = sheet_names("families")
    if model.family not in families:
        return ArchitectureFault("family", "is not known", ", ".join(families))
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
