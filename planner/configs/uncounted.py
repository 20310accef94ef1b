"""Find models and parallel sizes that a configuration names and no forecast counts: by keys of which nothing is known, or that are left out."""

import re
from collections.abc import Iterator
from typing import Final

from rlplan.planner.configs.importing import Imported
from rlplan.planner.configs.models import model_of, own_name
from rlplan.planner.configs.reading.settings import OFF

# Words of keys that name a model, and those of them that say whose it is.
ROLES: Final = frozenset(
    {
        "teacher",
        "judge",
        "reward",
        "rm",
        "verifier",
        "grader",
        "scorer",
        "critic",
        "draft",
        "student",
        "genrm",
    }
)
NAMING: Final = ROLES | {"model", "models", "pretrain", "checkpoint"}
# Words of keys whose value is called as a model and is none: what reads texts, what is written, names for people.
OTHERS: Final = frozenset(
    {"tokenizer", "processor", "template", "output", "save", "export", "upload", "push", "hub", "run", "experiment", "exp"}
    | {"project", "group", "tag", "log", "logger", "wandb", "served", "dataset", "data", "url", "type", "class", "parser"}
)  # fmt: skip
SIZED: Final = re.compile(r"(?<![a-z0-9])\d+(\.\d+)?b(?![a-z])", re.IGNORECASE)

# How keys call sizes by which a model, its sequences or experts are cut.
PARALLEL: Final = re.compile(
    r"(?:_parallel_size|_parallelism|(?:^|_)(?:tp|pp|cp|sp|ep|tensor_parallel|ulysses)(?:_size|_degree)?)$"
)


def uncounted_sizes(found: Imported) -> Iterator[str]:
    """Yield, in words, what nobody knows and is called as a parallel size: with it less or more may fit than is forecast."""
    flat = found.settings.flat
    for key in found.keys.unknown:
        value = flat[key].value
        cuts = isinstance(value, int) and not isinstance(value, bool) and value > 1
        if cuts and PARALLEL.search(key.rpartition(".")[2].replace("-", "_").lower()):
            yield f"{key}={value} is called as a parallel size, and is not counted: memory may be another"


def uncounted_models(found: Imported) -> Iterator[str]:
    """Yield, in words, the models that a configuration names and a forecast does not count."""
    keys, flat = found.keys, found.settings.flat
    counted = {str(flat[key].value) for key in keys.mapped}
    for key in (*keys.unknown, *keys.not_modelled, *keys.changes_work):
        value = flat[key].value
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, str) and each not in OFF and _names_model(key, each, counted):
                yield f"{key}={each} names a model whose memory is not counted"


def _names_model(key: str, value: str, counted: set[str]) -> bool:
    """Tell whether a key names a model by a value; the one that is counted anyway only where the key says whose it is."""
    words = {word for word in re.split(r"[^a-z0-9]+", key.lower()) if word}
    if "://" in value:
        return False  # an address: what answers there has GPUs of its own
    if not words & NAMING or words & OTHERS or (value in counted and not words & ROLES):
        return False
    return model_of(value) is not None or SIZED.search(own_name(value)) is not None
