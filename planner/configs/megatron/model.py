"""The model that Megatron's flags write out, and what of it is not as a sheet has it."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.models import (
    AttentionDetails,
    ExpertDetails,
    LatentAttention,
    LayerKind,
    LayerRun,
    ModelArchitecture,
    layer_kinds,
)
from rlplan.planner.configs.models import model_of
from rlplan.planner.configs.reading.given import GivenValue
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.shell.commands import NOT_AT_HAND
from rlplan.profiles.catalog import load_model, model_names
from rlplan.profiles.sheets import canonical_name

# Megatron-Core's own, where no flag gives them (megatron/training/arguments.py): a width of MLPs of four times the
# model's, two thirds of it where they are gated, in multiples of 64.
WIDER: Final = 4
GATED_SHARE: Final = 2 / 3
MULTIPLE: Final = 64
MOST_FREQUENCY: Final = 256
# What slime takes for a sequence where no flag says it (backends/megatron_utils/arguments.py, seq_length).
LEAST_POSITIONS: Final = 4096
# Where prompts have no limit: that of verl's recipe for DAPO-Math-17k, on which most of slime's own scripts train.
USUAL_LONGEST_PROMPT: Final = 2048
# `[0]*3+[1]*58`: dense layers and those with experts, as a list, or as a number of layers to one with experts.
_REPEATED: Final = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d+))?")
# Layers of a list that are read; no model has so many.
MOST_LAYERS: Final = 10_000
# A file of a model's flags, as slime's scripts read them in.
_MODEL_FILE: Final = re.compile(r"models/([\w.\-]+?)\.sh\b")
# Families, by their sheets' traits, whose layers such flags describe.
DENSE_FAMILY, EXPERT_FAMILY, LATENT_FAMILY = "qwen3", "qwen3_moe", "deepseek_v3"
DENSE, EXPERTS = "dense", "experts"
LAYERS: Final = "num_layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Say in what flags and a sheet differ.

    Attributes:
        setting: Name of the setting.
        expected: What the sheet has.
    """

    setting: str
    expected: object


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenModel:
    """Hold the model of a configuration.

    Attributes:
        sheet: Name of the sheet, or path, of what the checkpoint's name means; None where that is not known.
        whole: Whether the name is that of the sheet, not one that it stands in.
        flags: What the flags write out; None where they do not, or its layers are of a specification of their own.
        differences: In what both differ.
        cut: Whether `flags` is the sheet's model with its first layers alone.
    """

    sheet: str | None
    whole: bool
    flags: ModelArchitecture | None
    differences: tuple[Difference, ...] = ()
    cut: bool = False

    @property
    def own(self) -> ModelArchitecture | None:
        """Return the model of the flags where it counts: no sheet is known, or it is not what they say."""
        return self.flags if self.sheet is None or self.differences else None


def written_model(settings: Settings) -> WrittenModel:
    """Return the model that a configuration's checkpoint and flags mean; an option that names one leaves flags aside.

    Raises:
        FileError: A flag is no size.
    """
    if settings.model is not None:
        return WrittenModel(sheet=model_of(settings.model), whole=True, flags=None)
    named = _named(settings)
    sheet = None if named is None else model_of(named)
    flags = written_out(settings, named or "model")
    known = load_model(sheet) if sheet in model_names() else None
    whole = named is not None and sheet == canonical_name("models", Path(named).name)
    found = tuple(differences(settings, known)) if known is not None and sheet else ()
    fewer = flags is None and not whole and [each.setting for each in found] == [LAYERS]
    if known is not None and fewer:
        layers = settings.whole(LAYERS)
        if 0 < layers < known.num_layers:  # tried with few of its layers, as GLM-5.2_5layer
            cut = first_layers(known, layers)
            return WrittenModel(sheet=sheet, whole=whole, flags=cut, differences=found, cut=True)
    return WrittenModel(sheet=sheet, whole=whole, flags=flags, differences=found)


def first_layers(model: ModelArchitecture, layers: int) -> ModelArchitecture:
    """Return a model with its first layers alone, of which there are at least so many."""
    if model.layer_runs is None:
        return replace(model, num_layers=min(layers, model.num_layers))
    names = [kind for run in model.layer_runs for kind in run.kinds * run.count][:layers]
    runs = tuple(LayerRun(count=len([*alike]), kinds=(name,)) for name, alike in groupby(names))
    return replace(model, num_layers=len(names), layer_runs=runs)


def take_model_of_file(settings: Settings) -> None:
    """Let a script's checkpoint that nobody knows be the model whose file of flags it reads in, where that is not at hand."""
    named = settings.model or _named(settings)
    if (named is not None and model_of(named)) or settings.is_given("hidden_size"):
        return
    for gap in settings.gaps:
        found = _MODEL_FILE.search(gap.source) if gap.reason == NOT_AT_HAND else None
        if found is not None and model_of(found[1]):
            where = f"{settings.file}:{gap.line}"
            settings.flat[settings.key_of("model")] = GivenValue(value=found[1], where=where)
            note = f"the model is taken for {found[1]}, whose flags line {gap.line} reads in"
            settings.notes = (*settings.notes, note)
            return


def _named(settings: Settings) -> str | None:
    try:
        return settings.path("model")
    except FileError:
        return None


def written_out(settings: Settings, named: str) -> ModelArchitecture | None:
    """Return the model that flags write out; None where they do not, or leave its layers to a specification or to windows.

    Args:
        named: Its name, or where it lies.
    """
    hidden, layers = settings.optional_whole("hidden_size"), settings.optional_whole("num_layers")
    vocab = settings.optional_whole("vocab_size")
    elsewhere = [settings.value(name) is not None for name in ("spec", "window")]
    # Layers without positions are no transformer's alone: a bridge makes hybrid ones of the checkpoint's config.json.
    elsewhere.append(settings.given("position-embedding-type") == "none")
    if hidden is None or layers is None or vocab is None or any(elsewhere):
        return None
    heads = settings.whole("num_heads")
    if min(hidden, layers, vocab, heads) < 1:
        return None
    latent = _latent(settings)
    experts = settings.optional_whole("num_experts") or 0
    kv_heads = settings.optional_whole("num_kv_heads") if settings.on("grouped") else None
    head_dim = settings.optional_whole("head_dim") or hidden // heads
    ffn = _ffn_size(settings, hidden)
    family = LATENT_FAMILY if latent else EXPERT_FAMILY if experts else DENSE_FAMILY
    model = ModelArchitecture(
        name=Path(named).name.lower() or "model",
        family=family,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads if latent else kv_heads or heads,
        head_dim=latent.nope_dim + latent.rope_dim if latent else head_dim,
        ffn_size=ffn,
        vocab_size=vocab,
        max_positions=settings.optional_whole("megatron_positions") or _longest(settings),
        tied_embeddings=not settings.on("untied"),
        qkv_bias=settings.on("qkv_bias") or not settings.on("without_biases"),
        qk_norm=settings.on("qk_norm") and latent is None,
        gated_mlp=settings.on("gated"),
        num_experts=experts,
        experts_per_token=(settings.optional_whole("experts_per_token") or 1) if experts else 0,
        moe_ffn_size=(settings.optional_whole("moe_ffn_size") or ffn) if experts else 0,
        rope_theta=settings.number("rope_theta"),
        norm_epsilon=settings.number("norm_epsilon"),
        attention="latent-attention" if latent else "grouped-attention",
        norms_per_part=2 if settings.on("norms_behind") else None,
        attention_details=AttentionDetails(output_gate=True) if settings.on("gates") else None,
        expert_details=_expert_details(settings) if experts else None,
        latent=latent,
        source="flags of Megatron",
    )
    return _with_kinds(settings, model)


def _longest(settings: Settings) -> int:
    """Return the positions of a model that says none: those that its sequences take, since Megatron asks for no more."""
    prompt = settings.optional_whole("max_prompt") or USUAL_LONGEST_PROMPT
    both = prompt + (settings.optional_whole("max_response") or 0)
    return max(LEAST_POSITIONS, both, settings.optional_whole("max_total") or 0)


def _ffn_size(settings: Settings, hidden: int) -> int:
    given = settings.optional_whole("ffn_size")
    if given is not None:
        return given
    if settings.on("gated"):
        return int(WIDER * hidden * GATED_SHARE / MULTIPLE) * MULTIPLE
    return WIDER * hidden


def _latent(settings: Settings) -> LatentAttention | None:
    if not settings.on("latent"):
        return None
    return LatentAttention(
        query_rank=settings.optional_whole("query_rank"),
        kv_rank=settings.whole("kv_rank"),
        nope_dim=settings.whole("nope_dim"),
        rope_dim=settings.whole("rope_dim"),
        value_dim=settings.whole("value_dim"),
    )


def _expert_details(settings: Settings) -> ExpertDetails | None:
    details = ExpertDetails(
        shared_ffn_size=settings.optional_whole("shared_ffn_size") or 0,
        shared_gate=settings.on("shared_gate"),
        router_bias=settings.on("router_bias"),
    )
    return None if details == ExpertDetails() else details


def _with_kinds(settings: Settings, model: ModelArchitecture) -> ModelArchitecture:
    """Return a model whose layers are dense where the flags leave experts out."""
    if not model.num_experts:
        return model
    layers = layers_with_experts(settings, model.num_layers)
    if all(layers):
        return model
    runs, at = list[LayerRun](), 0
    while at < len(layers):
        count = next(
            (more for more in range(1, len(layers) - at) if layers[at + more] != layers[at]),
            len(layers) - at,
        )
        runs.append(LayerRun(count=count, kinds=(EXPERTS if layers[at] else DENSE,)))
        at += count
    kinds = FrozenDict({DENSE: LayerKind(feed_forward="dense-mlp"), EXPERTS: LayerKind()})
    return replace(model, layer_kinds=kinds, layer_runs=tuple(runs))


def layers_with_experts(settings: Settings, layers: int) -> tuple[bool, ...]:
    """Return which layers have experts: all, every so manieth, or those that a list says.

    Raises:
        FileError: The flag says neither.
    """
    given = settings.value("expert_layers")
    if isinstance(given, int) and not isinstance(given, bool) and 0 < given <= MOST_FREQUENCY:
        return tuple(layer % given == 0 for layer in range(layers))
    found = _listed(given)
    if found is None or len(found) != layers:
        problem = f"is no list of 0 and 1 for {layers} layers, nor a number of them"
        raise settings.refused("expert_layers", problem, f"[0]*1+[1]*{layers - 1}, or 1")
    return found


def _listed(given: object) -> tuple[bool, ...] | None:
    """Return a list of 0 and 1 as it is, or as Python would compute it of repeated ones."""
    if isinstance(given, str):
        plain = given.replace(" ", "").removeprefix("(").removesuffix(")")
        terms = [_REPEATED.fullmatch(term) for term in plain.split("+")]
        if all(terms):
            return tuple(
                each == "1"
                for term in terms
                if term is not None
                for each in term[1].split(",") * min(int(term[2] or 1), MOST_LAYERS)
            )
        try:
            given = ast.literal_eval(given)
        except (ValueError, SyntaxError):
            return None
    if isinstance(given, list) and all(each in {0, 1} for each in given):
        return tuple(bool(each) for each in given)
    return None


def differences(settings: Settings, sheet: ModelArchitecture) -> Iterator[Difference]:
    """Yield in what flags that are given differ from a model's sheet.

    These are the sizes that slime compares with the checkpoint's config.json (backends/megatron_utils/arguments.py,
    _hf_validate_args), and those without which its weights do not load.
    """
    models = layer_kinds(sheet).models
    dense = {each.ffn_size for each in models if each.feed_forward_part == "dense-mlp"}
    expected: dict[str, object] = {
        LAYERS: sheet.num_layers,
        "hidden_size": sheet.hidden_size,
        "num_heads": sheet.num_heads,
        "vocab_size": sheet.vocab_size,
        "num_experts": sheet.num_experts or None,
    }
    if len(dense) == 1:
        expected["ffn_size"] = dense.pop()
    if sheet.num_experts:
        expected |= {
            "experts_per_token": sheet.experts_per_token,
            "moe_ffn_size": sheet.moe_ffn_size,
        }
        shared = sheet.expert_details.shared_ffn_size if sheet.expert_details else 0
        expected["shared_ffn_size"] = shared or None
    if sheet.latent is None and settings.on("grouped"):
        expected["num_kv_heads"] = sheet.num_kv_heads
    for name, value in expected.items():
        if settings.is_given(name) and settings.optional_whole(name) != value:
            yield Difference(setting=name, expected=value)
    # The switch has no word for off: without flags of a model, nothing is said of it.
    if settings.is_given("hidden_size") and settings.on("untied") == sheet.tied_embeddings:
        yield Difference(setting="untied", expected=not sheet.tied_embeddings)
