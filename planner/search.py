"""Find the plan of the shortest iteration, with its runners-up and a certificate."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from planner.searchers import load_searcher
from planner.searchers.exhaustive import Progress
from profiles.facts import Facts
from rlplan.job import Job
from rlplan.plan import TaskDraft
from rlplan.searched import SearchResult

DEFAULT_SEARCHER = "exhaustive"


def search(
    job: Job,
    facts: Facts,
    *,
    searcher: str = DEFAULT_SEARCHER,
    drafts: dict[str, TaskDraft] | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Return plans of a resolved job, the shortest iteration (in seconds) first.

    Raises:
        UnknownNameError: No searcher of that name exists.
        InfeasibleError: No plan fits the cluster.
    """
    with _resting_collector():
        return load_searcher(searcher)(job, facts, drafts=drafts, progress=progress)


@contextmanager
def _resting_collector() -> Iterator[None]:
    """Keep the garbage collector from walking the candidates, which hold no cycles, again and again.

    It takes a sixth of a search of some 200,000 mappings.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
