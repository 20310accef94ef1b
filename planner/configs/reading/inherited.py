"""YAML configurations with what they inherit from (`defaults:`) and refer to (`${...}`)."""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import yaml

from planner.configs.reading.given import Flat, Given
from planner.configs.shell.text import Gap
from rlplan.errors import FileError, unreadable

INHERITS = "defaults"
# Of a mapping that takes the place of the inherited one instead of being merged into it.
REPLACES = "_override_"
MOST_ANCESTORS = 20
# A key that stands in the tree: no flag, list's element or choice of a group.
DOTTED = re.compile(r"^[A-Za-z_][\w-]*(\.[\w-]+)*$")

EXPONENT = re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$")

# How hydra names what a file's values are put under, in the file's first lines.
PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
SELF, GLOBAL, HERE = "_self_", "_global_", "_here_"
# What has to be given elsewhere.
MISSING = "???"

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# What NeMo-RL's and verl's configurations compute with.
RESOLVERS = {
    "mul": lambda *values: math.prod(values),
    "add": lambda *values: sum(values),
    "sub": lambda left, right: left - right,
    "div": lambda left, right: left // right if left % right == 0 else left / right,
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
}


def read_inherited(path: Path, over: Flat | None = None) -> Flat:
    """Return the values of a file over those of the files that it inherits from.

    References are followed last, as OmegaConf does: they mean what arguments say too. A file that is not there
    stands as a key `defaults: NAME`, whose value is a gap.

    Args:
        over: Arguments by key, which take the place of the files' values.

    Raises:
        FileError: A file is missing or broken, or inherits from itself.
    """
    data, places = _merged(path, ())
    over = over or {}
    for key, given in over.items():
        if DOTTED.match(key):
            _put(data, key.split("."), given.value)
    found = _resolved(data, places, over)
    return {**found, **{key: given for key, given in over.items() if key not in found}}


def _put(data: dict[str, Any], path: list[str], value: object) -> None:
    """Put an argument's value in its place; mappings that it needs are made."""
    *parents, last = path
    for each in parents:
        inner = data.get(each)
        if not isinstance(inner, dict):
            inner = data[each] = {}
        data = inner
    data[last] = value


def _merged(path: Path, seen: tuple[Path, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a file's mapping over those that it inherits from, and where each leaf stands."""
    if path.resolve() in seen or len(seen) > MOST_ANCESTORS:
        raise FileError(str(path), "inherits from itself", field=INHERITS)
    own, places = _read(path)
    named = own.pop(INHERITS, None)
    data: dict[str, Any] = {}
    inherited: dict[str, str] = {}
    for each in named if isinstance(named, list) else [] if named is None else [named]:
        if not isinstance(each, str) or each == "_self_":
            continue
        parent = path.parent / each
        parent = parent if parent.suffix else parent.with_suffix(".yaml")
        if not parent.is_file():
            inherited[f"{INHERITS}: {each}"] = str(path)
            continue
        more, where = _merged(parent, (*seen, path.resolve()))
        data = _over(data, more)
        inherited |= where
    return _over(data, own), inherited | places


def _over(base: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping merged into another."""
    merged = {} if data.get(REPLACES) else dict(base)
    for key, value in data.items():
        if key == REPLACES:
            continue
        before = merged.get(key)
        both = isinstance(value, dict) and isinstance(before, dict)
        merged[key] = (
            _over(cast(dict[str, Any], before) if both else {}, value)
            if isinstance(value, dict)
            else value
        )
    return merged


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a file's mapping, and the file and line of each leaf."""
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        data = {} if node is None else loader.construct_document(node)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(str(path), error) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise FileError(str(path), f"is not YAML{line}") from None
    if not isinstance(data, dict):
        raise FileError(str(path), "is no mapping", allowed="keys with values")
    places: dict[str, str] = {}
    if node is not None:
        _mark(node, "", str(path), places)
    return {str(key): value for key, value in data.items()}, places


def _mark(node: Any, prefix: str, file: str, places: dict[str, str]) -> None:  # noqa: ANN401 -- PyYAML has no types
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and value.value:
            _mark(value, f"{path}.", file, places)
        else:
            places[path] = f"{file}:{key.start_mark.line + 1}"


def _resolved(
    data: dict[str, Any],
    places: dict[str, str],
    over: Flat,
    usual: Mapping[str, object] | None = None,
) -> Flat:
    """Return the leaves by their keys, references replaced by what they refer to.

    Args:
        usual: What keys are that nobody gives.
    """
    from omegaconf import OmegaConf  # noqa: PLC0415 -- only where YAML is read
    from omegaconf.errors import OmegaConfBaseException  # noqa: PLC0415

    for name, function in RESOLVERS.items():
        if not OmegaConf.has_resolver(name):
            OmegaConf.register_resolver(name, function)
    under: dict[str, Any] = {}
    for key, value in (usual or {}).items():
        _put(under, key.split("."), value)
    whole = _over(under, data) if under else data
    try:
        tree = OmegaConf.create(whole)
    except OmegaConfBaseException:
        tree = OmegaConf.create(_readable(whole))
    missing = (key for key in places if key.startswith(f"{INHERITS}: "))
    flat: Flat = {
        key: missing_file(key.removeprefix(f"{INHERITS}: "), places[key]) for key in missing
    }
    for key, path, value in _leaves(data, "", ()):
        argument = over.get(key)
        if argument is not None and (argument.gaps or "${" not in str(value)):
            flat[key] = argument
            continue
        where = places.get(key, "the file") if argument is None else argument.where
        gaps = tuple[Gap, ...]()
        if "${" in str(value):
            try:
                value = _followed(tree, path)
            except OmegaConfBaseException:
                line = where.rpartition(":")[2]
                gap = Gap(
                    line=int(line) if line.isdigit() else 0,
                    source=str(value),
                    reason="what it refers to is not known",
                )
                gaps = (gap,)
        if isinstance(value, str) and EXPONENT.match(value):
            value = float(value)  # as OmegaConf reads it, and YAML 1.1 does not
        flat[key] = Given(value=value, where=where, gaps=gaps)
    return flat


def _readable(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping without the leaves whose references cannot be read: `${a.` is broken off."""
    from omegaconf import OmegaConf  # noqa: PLC0415
    from omegaconf.errors import OmegaConfBaseException  # noqa: PLC0415

    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            found[key] = _readable(value)
            continue
        with suppress(OmegaConfBaseException):
            OmegaConf.create({key: value})
            found[key] = value
    return found


def missing_file(name: str, file: str) -> Given:
    """Return what stands for a file's values where it is not there."""
    reason = "is not there; its values are taken to be the framework's usual ones"
    return Given(value=name, where=file, gaps=(Gap(line=1, source=name, reason=reason),))


def _followed(tree: Any, path: tuple[str, ...]) -> object:  # noqa: ANN401 -- a node of OmegaConf
    from omegaconf import OmegaConf  # noqa: PLC0415

    for part in path:
        tree = tree[part]
    return OmegaConf.to_container(tree, resolve=True) if OmegaConf.is_config(tree) else tree


def _leaves(
    data: Mapping[str, Any], prefix: str, parents: tuple[str, ...]
) -> "list[tuple[str, tuple[str, ...], Any]]":
    """Return the leaves of nested mappings: dotted key, path and value."""
    found = []
    for key, value in data.items():
        path = (*parents, key)
        if isinstance(value, dict) and value:
            found += _leaves(value, f"{prefix}{key}.", path)
        else:
            found.append((f"{prefix}{key}", path, value))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HydraFiles:
    """Say where hydra looks for a configuration's files.

    Attributes:
        folders: Their roots; the first that has a file counts.
        own_files: Those of the framework itself, as patterns: its usual values stand for them.
        own_folders: Where the framework's own stand if they are at hand, as patterns.
        bases: Folders to which places of searched folders may be relative.
        telling: Groups of which a choice of the framework's own says something.
    """

    folders: tuple[Path, ...]
    own_files: tuple[str, ...]
    own_folders: tuple[str, ...] = ()
    bases: tuple[Path, ...] = ()
    telling: frozenset[str] = frozenset()

    def found(self, name: str) -> Path | None:
        """Return the file of a name; None where none is at hand that is not the framework's own."""
        for root in self.folders:
            path = root / (name if name.endswith(".yaml") else f"{name}.yaml")
            if path.is_file() and not self.holds_own(path.parent):
                return path
        return None

    def is_own(self, name: str) -> bool:
        """Return whether the framework has a file of a name."""
        name = name.removesuffix(".yaml").lstrip("/")
        return any(fnmatchcase(name, each) for each in self.own_files)

    def holds_own(self, folder: Path) -> bool:
        """Return whether a folder holds the framework's own files."""
        return any(fnmatchcase(folder.resolve().as_posix(), each) for each in self.own_folders)


def read_composed(
    name: str,
    files: HydraFiles,
    over: Flat,
    *,
    removed: Collection[str] = (),
    usual: Mapping[str, object] | None = None,
) -> Flat | None:
    """Return the values of a file with what its list of defaults names, as hydra composes them; None without it.

    The framework's own files are not read: its usual values stand for them. That of the lowest is given as
    `defaults`; a choice of its groups by the group's name. A file that is not there stands as `defaults: NAME`.

    Args:
        over: Arguments by key: values, and choices of groups.
        removed: Keys that arguments take away.
        usual: What the framework's own files have, for references to it.

    Raises:
        FileError: A file is broken, or names itself.
    """
    path = files.found(name)
    if path is None:
        return None
    composer = _Composer(files, dict(over))
    composer.compose(path)
    for key in removed:
        _taken(composer.data, key.split("."))
    for key, given in composer.arguments.items():
        if DOTTED.match(key):
            _put(composer.data, key.split("."), given.value)
    flat = _resolved(composer.data, composer.places, composer.arguments, usual)
    flat = {key: given for key, given in flat.items() if given.value != MISSING}
    rest = {**composer.choices, **composer.arguments}
    return {**flat, **{key: given for key, given in rest.items() if key not in flat}}


def _taken(data: dict[str, Any], path: list[str]) -> None:
    """Take a key out of a mapping, where it is there."""
    *parents, last = path
    for each in parents:
        inner = data.get(each)
        if not isinstance(inner, dict):
            return
        data = inner
    data.pop(last, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Hold an entry of a list of defaults.

    Attributes:
        group: Its group, with slashes; empty for a file of the same folder.
        package: Under which its values are put, where it says so.
        names: Of files; none where nothing is chosen.
        overrides: Whether it only changes the choice of an entry elsewhere.
    """

    group: str
    names: tuple[str, ...]
    package: str | None = None
    overrides: bool = False
    optional: bool = False

    @property
    def key(self) -> str:
        """Return the name by which an argument chooses in its place."""
        group = self.group.lstrip("/")
        return group if self.package is None else f"{group}@{self.package}"


def _entries(listed: object) -> Iterator[_Entry]:
    """Yield the entries of a list of defaults; the file's own values come last unless it says otherwise."""
    entries = list(map(_entry, listed if isinstance(listed, list) else []))
    yield from entries
    if not any(entry.names == (SELF,) for entry in entries):
        yield _Entry(group="", names=(SELF,))


def _entry(listed: object) -> _Entry:
    if not isinstance(listed, dict) or not listed:
        path, _, package = str(listed).partition("@")
        group, _, name = path.rpartition("/")
        return _Entry(group=group, names=(name,), package=package or None)
    key, chosen = next(iter(listed.items()))
    *signs, word = str(key).split()
    group, _, package = word.partition("@")
    names = chosen if isinstance(chosen, list) else [] if chosen is None else [chosen]
    return _Entry(
        group=group,
        names=tuple(map(str, names)),
        package=package or None,
        overrides="override" in signs,
        optional="optional" in signs,
    )


class _Composer:
    """Compose a configuration as hydra does: files of groups under their packages, in the order of their lists."""

    def __init__(self, files: HydraFiles, arguments: Flat) -> None:
        self.data: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        self.choices: Flat = {}
        self.arguments = arguments
        self._files = files

    def compose(self, path: Path) -> None:
        """Read a file with all that it and the arguments name."""
        searched = self.arguments.get("hydra.searchpath")
        self._search({"searchpath": None if searched is None else searched.value})
        self._add(path, (), "", ())
        for key in [each for each in self.arguments if DOTTED.match(each) or "/" in each]:
            group, _, package = key.partition("@")
            chosen = self.arguments[key].value
            names = chosen if isinstance(chosen, list) else [chosen]
            if "." not in group and all(self._files.found(f"{group}/{name}") for name in names):
                del self.arguments[key]
                entry = _Entry(group=group, names=tuple(map(str, names)), package=package or None)
                self._include(entry, (), "", path, ())

    def _add(
        self, path: Path, package: tuple[str, ...], group: str, seen: tuple[Path, ...]
    ) -> None:
        """Add a file's values, and those of the files that it names, under a package."""
        if path.resolve() in seen or len(seen) > MOST_ANCESTORS:
            raise FileError(str(path), "inherits from itself", field=INHERITS)
        own, places = _read(path)
        entries = list(_entries(own.pop(INHERITS, None)))
        self._search(own.pop("hydra", None))
        for entry in entries:
            if entry.overrides and entry.key in self._files.telling:
                self.choices.setdefault(entry.key, self._chosen(entry.names, path))
        for entry in entries:
            if entry.names == (SELF,):
                self._lay(own, places, package)
            elif not entry.overrides:
                self._include(entry, package, group, path, (*seen, path.resolve()))

    def _search(self, hydra: object) -> None:
        """Look for files where a file says so, too."""
        listed = hydra.get("searchpath") if isinstance(hydra, dict) else None
        for each in listed if isinstance(listed, list) else []:
            scheme, _, place = str(each).rpartition("://")
            place = place.replace(".", "/") if scheme == "pkg" else place
            found = tuple(base / place for base in self._files.bases if (base / place).is_dir())
            self._files = replace(self._files, folders=(*self._files.folders, *found))

    def _lay(
        self, own: dict[str, Any], places: Mapping[str, str], package: tuple[str, ...]
    ) -> None:
        """Lay a file's own values over what there is."""
        prefix = "".join(f"{each}." for each in package)
        for each in reversed(package):
            own = {each: own}
        self.data = _over(self.data, own)
        self.places |= {
            f"{prefix}{key}": where
            for key, where in places.items()
            if key.partition(".")[0] not in {INHERITS, "hydra"}
        }

    def _include(
        self,
        entry: _Entry,
        package: tuple[str, ...],
        group: str,
        path: Path,
        seen: tuple[Path, ...],
    ) -> None:
        """Add the files that an entry of a list of defaults chooses."""
        for name in self._names(entry):
            there = (
                entry.group
                if entry.group.startswith("/") or not group
                else f"{group}/{entry.group}"
            )
            whole = f"{there.strip('/')}/{name}".lstrip("/")
            found = self._files.found(whole)
            if found is not None:
                inner = _package(entry, found, package)
                self._add(found, inner, whole.rpartition("/")[0], seen)
            elif "${" in name or entry.optional:
                continue
            elif entry.group and self._files.is_own(whole):
                if entry.key in self._files.telling:
                    self.choices[entry.key] = self._chosen((name,), path)
            elif self._files.is_own(whole):
                self.choices[INHERITS] = self._chosen((name,), path)
            else:
                self.places[f"{INHERITS}: {whole}"] = str(path)

    def _names(self, entry: _Entry) -> tuple[str, ...]:
        """Return the files that are chosen: by an argument, by a file's `override`, or by the entry itself."""
        given = self.arguments.get(entry.key) if entry.group else None
        if given is not None and not given.gaps and given.value is not None:
            group = entry.group.strip("/")
            if self._files.found(f"{group}/{given.value}") is not None:
                del self.arguments[entry.key]
            return (str(given.value),)
        chosen = self.choices.get(entry.key) if entry.group else None
        return entry.names if chosen is None else (str(chosen.value),)

    def _chosen(self, names: tuple[str, ...], path: Path) -> Given:
        return Given(value=names[0] if names else None, where=str(path))


def _package(entry: _Entry, path: Path, parent: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a file's values are put under: as its entry says, as it says itself, or by its group."""
    named = entry.package
    if named is None:
        header = PACKAGE.search(path.read_text(encoding="utf-8"))
        named = None if header is None else header[1]
    if named is None:
        return (*parent, *(part for part in entry.group.split("/") if part))
    if named == GLOBAL:
        return ()
    named = named.removeprefix(f"{GLOBAL}.") if named.startswith(f"{GLOBAL}.") else named
    return parent if named == HERE else (*parent, *named.split("."))
