"""YAML configurations with what they inherit from (`defaults:`) and refer to (`${...}`), and those that hydra composes."""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, cast

import yaml

from rlplan.errors import FileError, unreadable
from rlplan.files.decoding import repeated_key, text_of
from rlplan.planner.configs.reading.given import Flat, GivenValue, scalar
from rlplan.planner.configs.reading.references import MISSING, REFERS, References
from rlplan.planner.configs.reading.settings import fits_any
from rlplan.planner.configs.reading.sheet import ConfigSheet, spelled
from rlplan.planner.configs.shell.commands import above
from rlplan.planner.configs.shell.text import Gap, Text

# How hydra names what a file's values are put under, in the file's first lines.
PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
SELF, GLOBAL, HERE = "_self_", "_global_", "_here_"
# Flags that name a configuration's file, by all that they are written as.
CONFIG_FLAGS = {
    "--config": "--config",
    "--config-name": "--config-name",
    "-cn": "--config-name",
    "--config-path": "--config-path",
    "--config_name": "--config-name",
    "--config_path": "--config-path",
    "-cp": "--config-path",
    "--config-dir": "--config-dir",
    "-cd": "--config-dir",
}
# Where hydra's decorator says that a module has its configurations.
DECORATED = re.compile(r"hydra\.main\(([^)]*)\)")
NAMED = r"""{}\s*=\s*f?["']([^"']+)["']"""
HYDRA_FOLDER = "config"
NOT_FOUND = "its file is not found, and its keys are not known"


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
        """Return the file of a name; None where none is at hand that is not the framework's own.

        A fork puts its own files beside the framework's: of that folder, those are passed over that the framework has.
        """
        whole = name.removesuffix(".yaml").lstrip("/")
        named = any(fnmatchcase(whole, each.lstrip("*")) for each in self.own_files)
        for root in self.folders:
            path = root / (name if name.endswith(".yaml") else f"{name}.yaml")
            if path.is_file() and not (named and self.holds_own(path.parent)):
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
    composer = _composed(files, path, over)
    for key in removed:
        _taken(composer.data, key.split("."))
    for key, given in composer.arguments.items():
        if DOTTED.match(key):
            put_at(composer.data, key.split("."), given.value)
    flat = resolved(composer.data, composer.places, composer.arguments, usual)
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

    def __init__(
        self, files: HydraFiles, arguments: Flat, overrides: Mapping[str, tuple[str, ...]]
    ) -> None:
        self.data: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        self.choices: Flat = {}
        self.arguments = arguments
        self.overrides = dict(overrides)
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
        own, places = read_marked(path)
        entries = list(_entries(own.pop(INHERITS, None)))
        self._search(own.pop("hydra", None))
        for entry in entries:
            if entry.overrides:
                self.overrides.setdefault(entry.key, entry.names)
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
        self.data = laid_over(self.data, own)
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
                self.places[f"{OF_MISSING}{whole}"] = str(path)

    def _names(self, entry: _Entry) -> tuple[str, ...]:
        """Return the files that are chosen: by an argument, by a file's `override`, or by the entry itself."""
        given = self.arguments.get(entry.key) if entry.group else None
        if given is not None and not given.gaps and given.value is not None:
            group = entry.group.strip("/")
            if self._files.found(f"{group}/{given.value}") is not None:
                del self.arguments[entry.key]
            return (str(given.value),)
        return self.overrides.get(entry.key, entry.names) if entry.group else entry.names

    def _chosen(self, names: tuple[str, ...], path: Path) -> GivenValue:
        return GivenValue(value=names[0] if names else None, where=str(path))


def _package(entry: _Entry, path: Path, parent: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a file's values are put under: as its entry says, as it says itself, or by its group."""
    named = entry.package
    if named is None:
        header = PACKAGE.search(text_of(path))
        named = None if header is None else header[1]
    if named is None:
        return (*parent, *(part for part in entry.group.split("/") if part))
    if named.partition(".")[0] == GLOBAL:
        return tuple(named.split("."))[1:]
    return parent if named == HERE else (*parent, *named.split("."))


def _composed(files: HydraFiles, path: Path, over: Flat) -> _Composer:
    """Return a file composed with arguments, in two passes: what changes a choice elsewhere may stand anywhere."""
    first = _Composer(files, dict(over), {})
    first.compose(path)
    composer = _Composer(files, dict(over), first.overrides)
    composer.compose(path)
    return composer


def composed_yaml(sheet: ConfigSheet, path: Path, words: Iterable[Text], arguments: Flat) -> Flat:
    """Return arguments over a YAML file of one's own that is named itself.

    Args:
        words: The arguments as they are written.
    """
    files = HydraFiles(
        folders=(path.parent,),
        own_files=_own_files(sheet),
        bases=(Path(), path.parent, *above(path.parent)),
        telling=_telling(sheet),
    )
    found = read_composed(path.name, files, arguments, removed=_removed(words), usual=_usual(sheet))
    assert found is not None, "the file is there"
    return without_other_names(sheet, found, arguments)


def defaults_of(sheet: ConfigSheet, name: str, folder: Path, over: Flat) -> Flat:
    """Return what a framework's own file in a checkout says outright, by key; nothing where it has none of that name.

    Args:
        over: Arguments, of which the choices of groups count.

    Raises:
        FileError: A file is broken.
    """
    files = HydraFiles(folders=(folder,), own_files=())
    path = files.found(name)
    if path is None or not HydraFiles(folders=(), own_files=_own_files(sheet)).is_own(name):
        return {}
    chosen = {key: over[key] for key in _telling(sheet) & over.keys() if not DOTTED.match(key)}
    composer = _composed(files, path, chosen)
    leaves = ((key, _outright(value)) for key, _, value in _leaves(composer.data, "", ()))
    return {
        key: GivenValue(value=_number(value), where=composer.places[key])
        for key, value in leaves
        if isinstance(value, bool | int | float | str) and key in composer.places
        if value != MISSING and "${" not in str(value)
    }


def _outright(value: object) -> object:
    """Return a leaf; of a variable of the environment with a default (`${oc.env:N,8}`) what it is, or its default."""
    found = _OF_ENVIRONMENT.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else scalar(os.environ.get(found[1], found[2].strip()))


def composed(
    sheet: ConfigSheet, start: str, words: list[Text], folder: Path, arguments: Flat
) -> tuple[Flat, dict[str, str]]:
    """Return a command line's arguments over the file that hydra composes, and what of that is not known.

    The file is the one that the command line names, or else the started module; the framework's own are not read.
    """
    bases = (Path(), folder, *above(folder))
    module = _module_file(start, bases)
    usual_folder, usual_name = (None, None) if module is None else _decorated(module)
    named, placed, more = (
        config_option(words, f"--config-{each}") for each in ("name", "path", "dir")
    )
    name = named.value if named is not None else usual_name
    if name is None:
        return arguments, {}
    wanted = (placed.value if placed is not None else usual_folder) or HYDRA_FOLDER
    folders = [] if module is None else [module.parent / wanted]
    if module is None:  # beside where it would be, as far as that is at hand
        parts = Path(start.removesuffix(".py").replace(".", "/")).parent.parts
        beside = (Path(*parts[at:]) / wanted for at in range(len(parts)))
        folders += [base / each for each in beside for base in bases if (base / each).is_dir()]
    folders += [] if more is None else _folders(more.value, bases)
    folders += _folders(wanted, bases)
    if placed is None:
        folders += [Path(), folder]
    files = HydraFiles(
        folders=tuple(dict.fromkeys(folders)),
        own_files=_own_files(sheet),
        own_folders=sheet.own_folders,
        bases=bases,
        telling=_telling(sheet),
    )
    found = read_composed(name, files, arguments, removed=_removed(words), usual=_usual(sheet))
    if found is not None:
        return without_other_names(sheet, found, arguments), {}
    place = "" if placed is None else placed.value.rstrip("/")
    elsewhere = place.startswith(("/", "$", "`")) and not fits_any(place, sheet.own_folders)
    own = files.is_own(name) and not elsewhere
    if named is None or own:
        return arguments, {}
    missing = missing_file(name, arguments["--config-name"].where)
    return {**arguments, f"{OF_MISSING}{name}": missing}, {"--config-name": NOT_FOUND}


def _own_files(sheet: ConfigSheet) -> tuple[str, ...]:
    return tuple(name for each in sheet.own_files for name in spelled(each, sheet.roles))


def _telling(sheet: ConfigSheet) -> frozenset[str]:
    return frozenset(key for each in sheet.settings.values() for key in each.keys)


def _module_file(start: str, bases: Iterable[Path]) -> Path | None:
    """Return the file of a started module or script, where it is at hand."""
    path = start if start.endswith(".py") else start.replace(".", "/") + ".py"
    return next((base / path for base in bases if (base / path).is_file()), None)


def _decorated(module: Path) -> tuple[str | None, str | None]:
    """Return the folder, as it stands in a module, and the name of the configuration that it starts with."""
    found = DECORATED.search(text_of(module, "replace"))
    if found is None:
        return None, None
    folder, name = (
        re.search(NAMED.format(each), found[1]) for each in ("config_path", "config_name")
    )
    return folder and folder[1], name and name[1]


def _folders(named: str, bases: Sequence[Path]) -> list[Path]:
    """Return the folders that a path may mean: what leads to its known end may be of another machine."""
    scheme, _, place = named.rpartition("://")
    parts = [part for part in place.split("." if scheme == "pkg" else "/") if part]
    unknown = [at for at, part in enumerate(parts) if any(sign in part for sign in "$`)")]
    parts = parts[unknown[-1] + 1 :] if unknown else parts
    whole = [Path(place)] if place.startswith("/") and not unknown else []
    ends = [Path(*parts[at:]) for at in range(len(parts))] or [Path()]
    return [
        each for each in (*whole, *(base / end for end in ends for base in bases)) if each.is_dir()
    ]


def _removed(words: Iterable[Text]) -> tuple[str, ...]:
    """Return the keys that hydra's overrides take away."""
    return tuple(word.value[1:].partition("=")[0] for word in words if word.value.startswith("~"))


def _usual(sheet: ConfigSheet) -> dict[str, object]:
    """Return the framework's defaults by key."""
    return {
        key: each.default
        for each in sheet.every_setting()
        for key in each.keys
        if each.default is not None and DOTTED.match(key) and "." in key
    }


def without_other_names(sheet: ConfigSheet, flat: Flat, arguments: Flat) -> Flat:
    """Return values without those of files whose setting an argument gives by another of its keys."""
    hidden = {
        key
        for each in sheet.every_setting()
        if any(key in arguments for key in each.keys)
        for key in each.keys
        if key not in arguments and key != INHERITS
    }
    return {key: given for key, given in flat.items() if key not in hidden}


def config_option(words: list[Text], name: str) -> Text | None:
    """Return what a flag that names a configuration's file is given; None where it is not."""
    for place, word in enumerate(words):
        flag, equals, value = word.value.partition("=")
        if CONFIG_FLAGS.get(flag) != name:
            continue
        if equals:
            return word.with_value(value)
        if place + 1 < len(words):
            return words[place + 1]
    return None


INHERITS = "defaults"
# Begins the key that stands for a file which another builds on and which is not at hand.
OF_MISSING = f"{INHERITS}: "
# What hydra puts behind a file's name whose keys stand beside the list, or at the top, where such lists stand.
IN_PLACE: Final = re.compile(r"@_(?:here|global)_$")
# Of a mapping that takes the place of the inherited one instead of being merged into it.
REPLACES = "_override_"
MOST_ANCESTORS = 20
# A key that stands in the tree: no flag, list's element or choice of a group.
DOTTED = re.compile(r"^[A-Za-z_][\w-]*(\.[\w-]+)*$")

_OF_ENVIRONMENT: Final = re.compile(r"\$\{oc\.env:\s*(\w+)\s*,([^${}]*)\}")
EXPONENT = re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$")

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_inherited(path: Path, over: Flat | None = None, *, repeats: bool = False) -> Flat:
    """Return the values of a file over those of the files that it inherits from.

    References are followed last, as OmegaConf does: they mean what arguments say too. A file that is not there
    stands as a key `defaults: NAME`, whose value is a gap.

    Args:
        over: Arguments by key, which take the place of the files' values.
        repeats: Whether the last value counts of a key that comes twice, as `yaml.safe_load` has it; OmegaConf stops there.

    Raises:
        FileError: A file is missing or broken, or inherits from itself.
    """
    data, places = _merged(path, (), repeats=repeats)
    over = over or {}
    for key, given in over.items():
        if DOTTED.match(key):
            put_at(data, key.split("."), given.value)
    found = resolved(data, places, over)
    return {**found, **{key: given for key, given in over.items() if key not in found}}


def put_at(data: dict[str, Any], path: list[str], value: object) -> None:
    """Put an argument's value in its place; mappings that it needs are made."""
    *parents, last = path
    for each in parents:
        inner = data.get(each)
        if not isinstance(inner, dict):
            inner = data[each] = {}
        data = inner
    data[last] = value


def _merged(
    path: Path, seen: tuple[Path, ...], *, repeats: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a file's mapping over those that it inherits from, and where each leaf stands."""
    if path.resolve() in seen or len(seen) > MOST_ANCESTORS:
        raise FileError(str(path), "inherits from itself", field=INHERITS)
    own, places = read_marked(path, repeats=repeats)
    named = own.pop(INHERITS, None)
    data: dict[str, Any] = {}
    inherited: dict[str, str] = {}
    for each in named if isinstance(named, list) else [] if named is None else [named]:
        if not isinstance(each, str) or each == "_self_":
            continue
        parent = path.parent / IN_PLACE.sub("", each)
        parent = parent if parent.suffix else parent.with_suffix(".yaml")
        if not parent.is_file():
            inherited[f"{OF_MISSING}{each}"] = str(path)
            continue
        more, where = _merged(parent, (*seen, path.resolve()), repeats=repeats)
        data = laid_over(data, more)
        inherited |= where
    return laid_over(data, own), inherited | places


def laid_over(base: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping merged into another."""
    merged = {} if data.get(REPLACES) else dict(base)
    for key, value in data.items():
        if key == REPLACES:
            continue
        before = merged.get(key)
        both = isinstance(value, dict) and isinstance(before, dict)
        merged[key] = (
            laid_over(cast(dict[str, Any], before) if both else {}, value)
            if isinstance(value, dict)
            else value
        )
    return merged


def read_marked(path: Path, *, repeats: bool = False) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a file's mapping, and the file and line of each leaf, as `marked` does of a text."""
    try:
        text = text_of(path)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(str(path), error) from None
    return marked(text, str(path), repeats=repeats)


def marked(text: str, file: str, *, repeats: bool = False) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a YAML text's mapping, and the file and line of each leaf.

    Args:
        file: Where it stands, for messages.
        repeats: Whether a key may come twice, whose last value counts.

    Raises:
        FileError: It is no mapping, has a key twice, or refers to itself.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            _check_ends(node, "", file, (), set())
            again = None if repeats else repeated_key(node)
            if again is not None:
                raise _comes_twice(file, *again)
        data = {} if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise FileError(file, f"is not YAML{line}") from None
    if not isinstance(data, dict):
        raise FileError(file, "is no mapping", allowed="keys with values")
    places: dict[str, str] = {}
    if node is not None:
        _mark(node, "", file, places)
    return {str(key): value for key, value in data.items()}, places


def _check_ends(
    node: Any,  # noqa: ANN401 -- PyYAML has no types
    path: str,
    file: str,
    above: tuple[Any, ...],
    ended: set[int],
) -> None:
    """Refuse a mapping or list that holds itself; each is looked at once, whatever aliases it has."""
    if not isinstance(node, yaml.CollectionNode) or id(node) in ended:
        return
    if any(node is each for each in above):
        raise FileError(file, "refers to itself", field=path)
    for place, each in enumerate(node.value):
        if isinstance(node, yaml.MappingNode):
            key, value = each
            inside = f"{path}.{key.value}" if path else f"{key.value}"
        else:
            inside, value = f"{path}[{place}]", each
        _check_ends(value, inside, file, (*above, node), ended)
    ended.add(id(node))


def _comes_twice(file: str, path: str, key: Any) -> FileError:  # noqa: ANN401 -- PyYAML has no types
    where = f"in line {key.start_mark.line + 1}"
    problem = f"comes twice, the second time {where}, and OmegaConf stops there"
    field = f"{path}.{key.value}" if path else f"{key.value}"
    return FileError(file, problem, field=field, allowed="each key once")


def _mark(node: Any, prefix: str, file: str, places: dict[str, str]) -> None:  # noqa: ANN401 -- PyYAML has no types
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and value.value:
            _mark(value, f"{path}.", file, places)
        else:
            places[path] = f"{file}:{key.start_mark.line + 1}"


def resolved(
    data: dict[str, Any],
    places: dict[str, str],
    over: Flat,
    usual: Mapping[str, object] | None = None,
) -> Flat:
    """Return the leaves by their keys, references replaced by what they refer to.

    Args:
        usual: What keys are that nobody gives.
    """
    under: dict[str, Any] = {}
    for key, value in (usual or {}).items():
        put_at(under, key.split("."), value)
    whole = laid_over(under, data) if under else data
    leaves = _leaves(data, "", ())
    referring = [path for _, path, value in leaves if REFERS in str(value)]
    references = References(data=whole, paths=referring)
    missing = (key for key in places if key.startswith(OF_MISSING))
    flat: Flat = {key: missing_file(key.removeprefix(OF_MISSING), places[key]) for key in missing}
    for key, path, value in leaves:
        argument = over.get(key)
        if argument is not None and (argument.gaps or REFERS not in str(value)):
            flat[key] = argument
            continue
        where = places.get(key, "the file") if argument is None else argument.where
        gaps = tuple[Gap, ...]()
        if REFERS in str(value):
            try:
                value = references.followed(path, value)
            except LookupError:
                line = where.rpartition(":")[2]
                gap = Gap(
                    line=int(line) if line.isdigit() else 0,
                    source=str(value),
                    reason="what it refers to is not known",
                )
                gaps = (gap,)
        flat |= _spread(key, GivenValue(value=value, where=where, gaps=gaps), over)
    return flat


def _spread(key: str, given: GivenValue, over: Flat) -> Flat:
    """Return a value by its key; a mapping, as what is referred to may be, by those of all that it has but for arguments."""
    if not isinstance(given.value, dict) or not given.value:
        return {key: replace(given, value=_number(given.value))}
    return {
        name: over.get(name) or replace(given, value=_number(leaf))
        for name, _, leaf in _leaves(given.value, f"{key}.", ())
    }


def _number(value: object) -> object:
    """Return a leaf as OmegaConf reads it: `1e6` is a number, which it is not to YAML 1.1."""
    return float(value) if isinstance(value, str) and EXPONENT.match(value) else value


def missing_file(name: str, file: str) -> GivenValue:
    """Return what stands for a file's values where it is not there."""
    reason = "is not there; its values are taken to be the framework's usual ones"
    return GivenValue(value=name, where=file, gaps=(Gap(line=1, source=name, reason=reason),))


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
