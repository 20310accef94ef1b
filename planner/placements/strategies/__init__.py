"""Named placements, one file each: `place(roles) -> Placement`; the name is the file's name."""

import importlib
import pkgutil

from planner.placements.partitions import Placement
from rlplan.errors import UnknownNameError
from rlplan.job import Role


def strategy_names() -> tuple[str, ...]:
    """Return the names of all strategies, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def place(name: str, roles: tuple[Role, ...]) -> Placement:
    """Return the placement that a named strategy gives to these roles.

    Raises:
        UnknownNameError: No strategy of that name exists.
    """
    if name not in strategy_names():
        raise UnknownNameError("placement strategy", name, strategy_names())
    placement: Placement = importlib.import_module(f"{__name__}.{name}").place(roles)
    return placement
