"""Searchers, one file each: `search(job, facts, ...) -> SearchResult`; the name is the file's name."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from rlplan.errors import UnknownNameError
from rlplan.results.searched import SearchResult


def searcher_names() -> tuple[str, ...]:
    """Return the names of all searchers, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def load_searcher(name: str) -> Callable[..., SearchResult]:
    """Return the searcher of that name.

    Raises:
        UnknownNameError: No file of that name exists.
    """
    if name not in searcher_names():
        raise UnknownNameError("searcher", name, searcher_names())
    module: Any = importlib.import_module(f"{__name__}.{name}")
    searcher: Callable[..., SearchResult] = module.search
    return searcher
