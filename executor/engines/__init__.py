"""Generation engines, one file each; the name that a plan uses is the file's name with dashes.

Every file has `generate(shard, prompts, settings) -> Generation`, which all ranks of a replica
call together.
"""

import importlib
import pkgutil
from typing import Any

DEFAULT_ENGINE = "torch-static"


def engine_module_names() -> tuple[str, ...]:
    """Return the names of all generation engines, sorted."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


def load_engine_module(name: str) -> Any:
    """Return the module of an engine; an empty name takes the project's own."""
    return importlib.import_module(f"{__name__}.{(name or DEFAULT_ENGINE).replace('-', '_')}")
