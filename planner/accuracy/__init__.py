"""Readers of tables whose plans must be searched before they can be forecast, one file each.

They are readers as those of `simulator.accuracy`, which hands them their rows.
"""

import importlib
import pkgutil
from functools import cache

from simulator.accuracy import TableReader


@cache
def readers() -> tuple[TableReader, ...]:
    """Return the readers of this folder, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").READER for name in names)
