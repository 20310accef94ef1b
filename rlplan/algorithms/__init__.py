"""RL algorithms, one file each; a job names it as its file, with dashes for underscores."""

import importlib
import pkgutil
from functools import cache

from rlplan.dataflow import Algorithm
from rlplan.errors import UnknownNameError


def algorithm_names() -> tuple[str, ...]:
    """Return the names of all algorithms, sorted."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


@cache
def load_algorithm(name: str) -> Algorithm:
    """Return the algorithm of that name.

    Raises:
        UnknownNameError: No file of that name exists.
    """
    if name not in algorithm_names():
        raise UnknownNameError("algorithm", name, algorithm_names())
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    algorithm: Algorithm = module.ALGORITHM
    return algorithm
