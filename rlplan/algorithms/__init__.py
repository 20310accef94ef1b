"""RL algorithms, one file each; the name that a job uses is the file's name."""

import importlib
import pkgutil

from rlplan.dataflow import Algorithm
from rlplan.errors import UnknownNameError


def algorithm_names() -> tuple[str, ...]:
    """Return the names of all algorithms, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load_algorithm(name: str) -> Algorithm:
    """Return the algorithm of that name.

    Raises:
        UnknownNameError: No file of that name exists.
    """
    if name not in algorithm_names():
        raise UnknownNameError("algorithm", name, algorithm_names())
    algorithm: Algorithm = importlib.import_module(f"{__name__}.{name}").ALGORITHM
    return algorithm
