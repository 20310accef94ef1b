"""What a notebook shows of results: `reports.notebook` makes it, and is looked up by its name when it is asked for."""

from importlib import import_module
from typing import Any

_ROOM = "reports.notebook"


def html_of(result: object) -> str:
    """Return a result as HTML, as it stands below a notebook's cell."""
    html: str = import_module(_ROOM).html_of(result)
    return html


def frame_of(result: object) -> Any:  # noqa: ANN401 -- pandas is no part of the vocabulary
    """Return a result's rows as a `pandas.DataFrame`."""
    return import_module(_ROOM).frame_of(result)
