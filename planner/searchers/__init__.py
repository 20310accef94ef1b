"""Searchers, one file each: `search(job, facts, ...) -> SearchResult`; the name is the file's name."""

from collections.abc import Callable

from rlplan.plug_ins import PlugIns
from rlplan.results.forecast import SearchResult

SEARCHERS = PlugIns[Callable[..., SearchResult]](
    __name__, __path__, kind="searcher", attribute="search", dashes=False
)
load_searcher = SEARCHERS.load
