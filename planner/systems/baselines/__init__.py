"""Systems of the field, one file each: `best_plan(job, facts) -> SystemForecast`.

A user names a system as its file, with dashes for underscores and a dot between figures:
`openrlhf_0_2.py` is `openrlhf-0.2`.
"""

import importlib
import pkgutil
import re
from typing import Protocol, cast

from profiles.facts import Facts
from rlplan.errors import UnknownNameError
from rlplan.job import Job
from rlplan.results.systems import SystemForecast

_BETWEEN_FIGURES = re.compile(r"(?<=\d)_(?=\d)")


class Baseline(Protocol):
    """Be a system of the field."""

    ABOUT: str

    def best_plan(self, job: Job, facts: Facts) -> SystemForecast:
        """Return the best plan that the system can express, or the reason why none fits.

        Args:
            job: A resolved job.
        """
        ...


def baseline_names() -> tuple[str, ...]:
    """Return the names of all systems, sorted."""
    return tuple(sorted(_modules()))


def load_baseline(name: str) -> Baseline:
    """Return the system of that name.

    Raises:
        UnknownNameError: No file of that name exists.
    """
    modules = _modules()
    if name not in modules:
        raise UnknownNameError("system", name, modules)
    return cast("Baseline", importlib.import_module(f"{__name__}.{modules[name]}"))


def system_name(module: str) -> str:
    """Return the name that a user types for a module of this folder."""
    return _BETWEEN_FIGURES.sub(".", module.rpartition(".")[2]).replace("_", "-")


def _modules() -> dict[str, str]:
    return {system_name(module.name): module.name for module in pkgutil.iter_modules(__path__)}
