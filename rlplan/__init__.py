"""The vocabulary of rlplan: frozen types, units, errors and the strict reading of files.

Every room speaks these words; they import none of them. The rooms (`rlplan.planner`, `rlplan.simulator`, ...) lie
beside this folder and are members of it by links. What a notebook or script calls has its names here; the module of
a name is loaded when the name is first asked for, and rooms when a function is called.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlplan.job import Job as Job
    from rlplan.plan import Plan as Plan
    from rlplan.results.forecast import Forecast as Forecast
    from rlplan.results.forecast import SearchResult as SearchResult
    from rlplan_cli.interface import check as check
    from rlplan_cli.interface import execute as execute
    from rlplan_cli.interface import load_job as load_job
    from rlplan_cli.interface import load_plan as load_plan
    from rlplan_cli.interface import search as search
    from rlplan_cli.interface import simulate as simulate

__version__ = "0.1.0"

_MODULES = {
    "Job": "rlplan.job",
    "Plan": "rlplan.plan",
    "Forecast": "rlplan.results.forecast",
    "SearchResult": "rlplan.results.forecast",
    "check": "rlplan_cli.interface",
    "execute": "rlplan_cli.interface",
    "load_job": "rlplan_cli.interface",
    "load_plan": "rlplan_cli.interface",
    "search": "rlplan_cli.interface",
    "simulate": "rlplan_cli.interface",
}


def __getattr__(name: str) -> object:
    """Return what a name stands for, from its module (PEP 562): the command's `--version` needs no types.

    Raises:
        AttributeError: There is nothing of that name.
    """
    if name not in _MODULES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names that a user may ask for."""
    return sorted({*globals(), *_MODULES} - {"TYPE_CHECKING", "import_module"})
