"""Folders of plug-ins: one file each, found and loaded by its name; nothing lists them by hand."""

import pkgutil
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, Generic, TypeVar

from rlplan.errors import UnknownNameError

T = TypeVar("T")

_BETWEEN_FIGURES = re.compile(r"(?<=\d)_(?=\d)")


class PlugIns(Generic[T]):
    """Be the plain modules of one folder; packages inside the folder are no plug-ins.

    Args:
        package: The folder's import name.
        path: Its `__path__`.
        kind: What one of them is called in a message ("algorithm").
        attribute: What each file gives under that name; None gives the module itself.
        dashes: Whether the name that a user types has dashes for the file name's underscores, and
            dots for those between figures (`openrlhf_0_2.py` is `openrlhf-0.2`).
        table: Import name of a module whose `MEMBERS` gives more by their names, which data alone describe. It is
            looked up when a name is asked for, and may stand above; a file of the same name counts instead.
    """

    def __init__(
        self,
        package: str,
        path: Iterable[str],
        *,
        kind: str,
        attribute: str | None = None,
        dashes: bool = True,
        table: str | None = None,
    ) -> None:
        self.package, self.kind = package, kind
        self._path, self._attribute, self._dashes, self._table = path, attribute, dashes, table
        self._loaded: dict[str, T] = {}
        self._listed: dict[tuple[str, ...], dict[str, str]] = {}

    def names(self) -> tuple[str, ...]:
        """Return the names of all files, sorted; none is loaded."""
        return tuple(sorted(self._modules().keys() | self._members.keys()))

    def names_of_files(self) -> tuple[str, ...]:
        """Return the names of the folder's own files, sorted; none is loaded."""
        return tuple(sorted(self._modules()))

    def load(self, name: str, *, hint: str = "") -> T:
        """Return what the file of that name gives; a file is loaded once.

        Args:
            hint: What else the message says of a name that is not known.

        Raises:
            UnknownNameError: No file of that name exists.
        """
        if name not in self._loaded:
            modules = self._modules()
            if name in modules:
                module: Any = import_module(f"{self.package}.{modules[name]}")
                self._loaded[name] = getattr(module, self._attribute) if self._attribute else module
            elif name in self._members:
                self._loaded[name] = self._members[name]
            else:
                raise UnknownNameError(self.kind, name, self.names(), hint=hint)
        return self._loaded[name]

    def all(self) -> tuple[T, ...]:
        """Return what every file gives, in the order of their names."""
        return tuple(self.load(name) for name in self.names())

    @cached_property
    def _members(self) -> Mapping[str, T]:
        if self._table is None:
            return {}
        members: Mapping[str, T] = import_module(self._table).MEMBERS
        return members

    def _modules(self) -> dict[str, str]:
        """Return the module of every name; a folder is listed once."""
        folders = tuple(self._path)
        if folders not in self._listed:
            found: dict[str, str] = {}
            for module in pkgutil.iter_modules(folders):
                dashed = _BETWEEN_FIGURES.sub(".", module.name).replace("_", "-")
                if not module.ispkg:
                    found[dashed if self._dashes else module.name] = module.name
            self._listed[folders] = found  # once it is whole: other threads look names up meanwhile
        return self._listed[folders]
