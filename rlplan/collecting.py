"""Garbage that is collected later: what makes many objects and few cycles, such as a search, need not be walked."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def resting_collector() -> Iterator[None]:
    """Keep the garbage collector from walking what is made, again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def collect_young() -> None:
    """Free the cycles among what was made since this was called last, walking nothing older: while the collector rests, nobody else does."""
    gc.collect(0)
