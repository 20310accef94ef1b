"""Published evaluations, one file each: `reproduce(progress) -> Reproduction`; the name is the file's."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Protocol, cast

from rlplan.errors import UnknownNameError
from rlplan.results.reproduced import Reproduction

Progress = Callable[[int, int, str], None]


class Evaluation(Protocol):
    """Be a published evaluation."""

    def reproduce(self, progress: Progress | None = None) -> Reproduction:
        """Return every point forecast and every claim marked.

        Args:
            progress: Called with (done, total, point) before each.
        """
        ...


def reproduction_names() -> tuple[str, ...]:
    """Return the names of all evaluations, sorted."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


def load_reproduction(name: str) -> Evaluation:
    """Return the evaluation of that name.

    Raises:
        UnknownNameError: No file of that name exists.
    """
    if name not in reproduction_names():
        raise UnknownNameError("evaluation", name, reproduction_names())
    return cast("Evaluation", importlib.import_module(f"{__name__}.{name.replace('-', '_')}"))
