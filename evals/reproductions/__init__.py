"""Published evaluations, one file each: `reproduce(progress) -> Reproduction`; the name is the file's.

How points are forecast and claims are marked stands in a folder of the evaluation's name.
"""

from collections.abc import Callable
from typing import Protocol

from rlplan.plug_ins import PlugIns
from rlplan.results.accuracy import Reproduction

Progress = Callable[[int, int, str], None]


class Evaluation(Protocol):
    """Be a published evaluation."""

    def reproduce(self, progress: Progress | None = None) -> Reproduction:
        """Return every point forecast and every claim marked.

        Args:
            progress: Called with (done, total, point) before each.
        """
        ...


REPRODUCTIONS = PlugIns[Evaluation](__name__, __path__, kind="evaluation")
reproduction_names, load_reproduction = REPRODUCTIONS.names, REPRODUCTIONS.load
