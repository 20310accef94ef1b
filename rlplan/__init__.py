"""The vocabulary of rlplan: frozen types, units, errors and the strict reading of files.

Every other room speaks these words; this one imports none of them. What a notebook or script calls
(`rlplan.search`, `rlplan.simulate`, ...) is looked up by its name when it is first asked for; its types stand in
`__init__.pyi`.
"""

from importlib import import_module

__version__ = "0.1.0"

_INTERFACE = "rlplan_cli.interface"
_HOMES = {
    "Forecast": "rlplan.results.forecast",
    "Job": "rlplan.job",
    "Plan": "rlplan.plan",
    "SearchResult": "rlplan.results.searched",
    **dict.fromkeys(
        ("check", "execute", "load_job", "load_plan", "search", "simulate"), _INTERFACE
    ),
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 -- all are names


def __getattr__(name: str) -> object:
    """Return what the package gives under a name, from the module that holds it."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'rlplan' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
