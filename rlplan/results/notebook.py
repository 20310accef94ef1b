"""What a notebook shows of results: `rlplan.reports.notebook` makes it, and is looked up by its name when it is asked for."""

from importlib import import_module
from typing import Any

_ROOM = "rlplan.reports.notebook"


class NotebookResult:
    """Be a result that a notebook shows."""

    __slots__ = ()

    def to_pandas(self) -> Any:  # noqa: ANN401 -- pandas is no part of the vocabulary
        """Return its rows, tasks or plans, as a `pandas.DataFrame`, seconds and USD as numbers."""
        return import_module(_ROOM).frame_of(self)

    def _repr_html_(self) -> str:
        """Return what stands below a notebook's cell."""
        html: str = import_module(_ROOM).html_of(self)
        return html
