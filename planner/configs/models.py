"""Sheets of models by what tables and configurations call them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rlplan.models import ModelArchitecture, Precision
from rlplan.parts import num_parameters
from rlplan.profiles.catalog import load_model, model_names
from rlplan.profiles.jobs.config.reading import cached_config
from rlplan.profiles.sheets import canonical_name

# Words of published names that say how a model was tuned or stored, or how large it is where its own name does not.
TUNED: Final = ("instruct", "chat", "base", "it", "hf", "671b")
# Words behind a name without a size that make it another model: smaller, or with other inputs.
OTHER_MODELS: Final = frozenset(
    {"lite", "mini", "nano", "tiny", "small", "large", "omni", "vl", "audio"}
)
STORED: Final = ("bf16", "fp8", "fp16", "dequantized", "sft", "mixture")
# Folders of a checkpoint, which stand inside the one that is named after its model.
CHECKPOINT: Final = re.compile(
    r"(global_?|check_?point-?)?(step|iter|epoch)?[_-]?\d*([_-]?(merged|hf))?"
    r"|(actor|final|best|last)([_-]?(model|ckpt|checkpoint|hf))?|hugging_?face|hf|weights|latest|v\d+-\d{8}-\d{6}"
)
# What converters write behind a model's name (slime's and Megatron's), and sizes that a name need not tell.
CONVERTED: Final = re.compile(r"[_-](torch_dist|mcore|megatron|dcp)$", re.IGNORECASE)
SIZES: Final = re.compile(r"(-\d+(\.\d+)?[bt])?-a\d+(\.\d+)?b$", re.IGNORECASE)
# Models whose checkpoints are of FP8 where they were published (config.json, quantization_config).
PUBLISHED_FP8: Final = frozenset(
    {"deepseek-v3", "deepseek-v3.2", "kimi-k2", "kimi-k2-0905", "minimax-m2.5", "minimax-m2.7"}
)
# Models whose checkpoints have routed experts in MXFP4 and other layers in FP8 (their model cards, "FP4 + FP8 Mixed").
PUBLISHED_MXFP4: Final = frozenset({"deepseek-v4-flash", "deepseek-v4-pro"})
# Ids of checkpoints with experts in MXFP4 and all else in bf16 (config.json, quantization_config), as vLLM holds them. Copies of other
# names are mostly in bf16, in which they are trained.
IDS_IN_MXFP4: Final = frozenset({"openai/gpt-oss-20b", "openai/gpt-oss-120b"})
CONFIG_JSON: Final = "config.json"
# A known model for sequences that are longer than other examples have positions.
LONG_EXAMPLE: Final = "Qwen/Qwen3-4B-Instruct-2507"
# Families whose models call their tower of images `visual` in Transformers (`modeling_qwen2_vl.py`, `modeling_glm4v.py` and
# so on); others call it `vision_tower`, `vision_model` or otherwise (Gemma, Llama 4, Mistral, InternVL).
VISUAL: Final = frozenset(
    {
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen2_5_omni_thinker",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_omni_moe_thinker",
        "qwen3_5",
        "qwen3_5_moe",
        "glm4v",
        "glm4v_moe",
    }
)


def parameters_of(named: object) -> int:
    """Return the parameters of a model by what a configuration calls it; 0 where no sheet is of it."""
    known = model_of(named) if isinstance(named, str) else None
    return num_parameters(load_model(known)) if known in model_names() else 0


def has_visual(model: ModelArchitecture) -> bool:
    """Tell whether a model has a part `visual`, which is what verl and EasyR1 freeze as the tower of images.

    verl 0.7 `verl/workers/fsdp_workers.py` (`get_vl_model_vision_tower`) and EasyR1 `verl/workers/fsdp_workers.py`: of
    models that have none they freeze nothing, and print that no tower was found.
    """
    return bool(model.vision_parameters) and model.family in VISUAL


def published_precision(named: str, sheet: str | None) -> Precision | None:
    """Return the format in which engines hold a checkpoint's weights, where it is no format of training; None of others.

    Args:
        named: The checkpoint's path or id.
        sheet: Its model's.
    """
    words = set(re.split("[-_]", named.rstrip("/").lower().split("/")[-1]))
    if "int4" in words or ({"k2", "thinking"} <= words and not words & {"bf16", "fp8"}):
        return "int4"
    is_fp8 = sheet in PUBLISHED_FP8 and not words & {"bf16", "thinking", "int4"}
    return "fp8" if "fp8" in words or is_fp8 else published_four_bits(named, sheet)


def published_four_bits(named: str, sheet: str | None) -> Precision | None:
    """Return the format in which engines hold a checkpoint that is published with experts of four bits; None of others.

    Its other layers, of 8 bits, are counted as if they were of four too: they are a few hundredths of it.

    Args:
        named: The checkpoint's path or id: what it is stored in stands there, and base models have 8 bits throughout.
        sheet: Its model's.
    """
    if sheet not in PUBLISHED_MXFP4:
        return None
    words = set(re.split(r"[-_/.]", named.lower()))
    if words & {"bf16", "dequantized"}:
        return None
    return "fp8" if words & {"fp8", "base"} else "mxfp4"


def sheet_of_model(published: str) -> str | None:
    """Return the sheet of a model as a table names it; None where no sheet is of that model."""
    name = published.partition("(")[0].strip().lower()
    words = [word for word in re.split(r"[\s-]+", name) if word not in TUNED]
    joined = "-".join(words)
    apart, together = (
        re.sub(pattern, sign, joined)
        for pattern, sign in ((r"^([a-z]+)(\d)", r"\1-\2"), (r"^([a-z]+)-(\d)", r"\1\2"))
    )
    tries = [name, joined, apart, together]
    for each in tries:
        known = canonical_name("models", each)
        if known in model_names():
            return known
    longer = [sheet for sheet in model_names() for each in tries if sheet.startswith(f"{each}-")]
    # The plain one of a series, such as qwen3-235b-a22b.
    return min(longer, key=len) if longer else None


def model_of(named: str) -> str | None:
    """Return the sheet of a model by its id or the last part of its path, or the path of its own config.json.

    None where neither is known. An id that no sheet lists may be one of Hugging Face's cache on this machine.
    """
    return _named_outright(named) or _named_in_part(named)


def notes_of_names(sheets: Iterable[tuple[str, str | None]]) -> Iterator[str]:
    """Yield a note for each model whose sheet is that of some words of its name, as of a fine-tune or a folder of one's own.

    Args:
        sheets: What models are called, and their sheets.
    """
    for named, sheet in dict.fromkeys(sheets):
        if sheet in model_names() and _named_outright(named) is None:
            yield f"{named} is taken for {sheet}, by its name; --model says another"


def example_for(names: Sequence[str], tokens: int) -> str:
    """Return the first of some known models with positions for so many tokens; the first where none has."""
    known = {name: model_of(name) for name in (*names, LONG_EXAMPLE)}
    fitting = (
        name
        for name, sheet in known.items()
        if sheet in model_names() and load_model(sheet).max_positions >= tokens
    )
    return next(fitting, names[0])


def _plain_name(named: str) -> tuple[str, str]:
    """Return what a model's own folder or id is called: without converters' ends, and without how it is stored."""
    last = CONVERTED.sub("", own_name(named))
    return last, "-".join(word for word in last.split("-") if word.lower() not in STORED)


def _named_outright(named: str) -> str | None:
    """Return the sheet of a model by its whole name, or the path of its own config.json; None where neither is known."""
    path = Path(named).expanduser()
    if (path / CONFIG_JSON).is_file() or (path.suffix == ".json" and path.is_file()):
        return str(path)
    last, plain = _plain_name(named)
    for name in (named, last, plain, SIZES.sub("", plain)):
        known = canonical_name("models", name)
        if known in model_names():
            return known
    cached = cached_config(named)
    return None if cached is None else str(cached)


def _named_in_part(named: str) -> str | None:
    """Return the sheet that some words of a name mean; the others say how it was tuned, and for what.

    Folders join words by underscores as well: `Qwen2.5-Coder-3B_lemmas_sft`.
    """
    plain = _plain_name(named)[1]
    found = _led_anywhere(plain.split("-"))
    return found or (_led_anywhere(re.split("[-_]", plain)) if "_" in plain else None)


def own_name(named: str) -> str:
    """Return the last part of an id or path that is no folder inside a model's own: that in which checkpoints lie."""
    path = Path(named).expanduser()
    parts = [part for part in path.parts if not CHECKPOINT.fullmatch(part)]
    return parts[-1] if parts else path.name


def _led_anywhere(words: Sequence[str]) -> str | None:
    """Return the sheet that some words mean, wherever they begin."""
    words = [word.lower() for word in words]
    found = _led_by(words)
    later = (_led_by(words[start:]) for start in range(1, len(words)))
    return found or next((sheet for sheet in later if sheet is not None), None)


def _led_by(words: list[str]) -> str | None:
    """Return the sheet that the first words mean: up to their size, or a whole name without one."""
    sized = next(
        (at for at, word in enumerate(words) if re.fullmatch(r"\d+(\.\d+)?[bm]", word)), None
    )
    if sized is None:
        wholes = (
            canonical_name("models", "-".join(words[:end]))
            for end in range(len(words), 1, -1)
            if OTHER_MODELS.isdisjoint(words[end:])
        )
        return next((whole for whole in wholes if whole in model_names()), None)
    tries = (sheet_of_model("-".join(words[:end])) for end in range(len(words), sized, -1) if sized)
    return next((sheet for sheet in tries if sheet is not None), None)
