"""YAML configurations with what they inherit from (`defaults:`) and refer to (`${...}`)."""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import yaml

from rlplan.errors import FileError, unreadable
from rlplan.planner.configs.reading.given import Flat, GivenValue
from rlplan.planner.configs.shell.text import Gap

INHERITS = "defaults"
# Of a mapping that takes the place of the inherited one instead of being merged into it.
REPLACES = "_override_"
MOST_ANCESTORS = 20
# A key that stands in the tree: no flag, list's element or choice of a group.
DOTTED = re.compile(r"^[A-Za-z_][\w-]*(\.[\w-]+)*$")

EXPONENT = re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$")

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


def _merged(path: Path, seen: tuple[Path, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a file's mapping over those that it inherits from, and where each leaf stands."""
    if path.resolve() in seen or len(seen) > MOST_ANCESTORS:
        raise FileError(str(path), "inherits from itself", field=INHERITS)
    own, places = read_marked(path)
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


def read_marked(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
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
    from omegaconf import OmegaConf  # noqa: PLC0415 -- only where YAML is read
    from omegaconf.errors import OmegaConfBaseException  # noqa: PLC0415

    for name, function in RESOLVERS.items():
        if not OmegaConf.has_resolver(name):
            OmegaConf.register_resolver(name, function)
    under: dict[str, Any] = {}
    for key, value in (usual or {}).items():
        put_at(under, key.split("."), value)
    whole = laid_over(under, data) if under else data
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
        flat[key] = GivenValue(value=value, where=where, gaps=gaps)
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


def missing_file(name: str, file: str) -> GivenValue:
    """Return what stands for a file's values where it is not there."""
    reason = "is not there; its values are taken to be the framework's usual ones"
    return GivenValue(value=name, where=file, gaps=(Gap(line=1, source=name, reason=reason),))


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
