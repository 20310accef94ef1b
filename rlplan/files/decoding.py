"""Read files strictly: every mistake becomes one message with file, field, value and nearest fix."""

import dataclasses
import json
from collections.abc import Hashable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from rlplan.errors import FileError, nearest_name, unreadable

T = TypeVar("T")

STRICT = ConfigDict(extra="forbid", strict=False, allow_inf_nan=False)


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the reader of a type, built once; unknown keys are refused at every level."""
    _forbid_unknown_keys(kind, set())
    return TypeAdapter(kind)


def _forbid_unknown_keys(kind: Any, seen: set[Any]) -> None:
    if kind in seen or not isinstance(kind, type):
        for argument in getattr(kind, "__args__", ()):
            _forbid_unknown_keys(argument, seen)
        return
    seen.add(kind)
    if not dataclasses.is_dataclass(kind):
        return
    kind.__pydantic_config__ = STRICT  # type: ignore[attr-defined]
    for hint in get_type_hints(kind).values():
        _forbid_unknown_keys(hint, seen)


def decode(kind: type[T], data: Any, file: str) -> T:
    """Return `data` (what YAML or JSON held) as `kind`.

    Raises:
        FileError: A key is unknown or missing, or a value is not allowed; `file` is named in it.
    """
    try:
        value: T = adapter(cast("Hashable", kind)).validate_python(data)
    except ValidationError as error:
        raise _as_file_error(kind, file, error.errors(include_url=False)) from None
    return value


def read_yaml(kind: type[T], path: Path) -> T:
    """Return a YAML (or JSON) file as `kind`.

    Raises:
        FileError: The file is missing, is no YAML, or does not hold a `kind`.
    """
    return decode(kind, load_yaml(path), str(path))


def read_json(kind: type[T], path: Path) -> T:
    """Return a JSON file as `kind`.

    Raises:
        FileError: The file is missing, is no JSON, or does not hold a `kind`.
    """
    return decode(kind, load_json(path), str(path))


def load_json(path: Path) -> Any:
    """Return what a JSON file holds, as dicts and lists.

    Raises:
        FileError: The file is missing or is no JSON.
    """
    try:
        return json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise FileError(str(path), f"is not JSON: {error}") from None


def load_yaml(path: Path) -> Any:
    """Return what a YAML file holds, as dicts and lists.

    Raises:
        FileError: The file is missing or is no YAML.
    """
    try:
        return yaml.load(_read_text(path), Loader=_Loader)  # noqa: S506, a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise FileError(str(path), f"is not YAML{where}: {problem}") from None
    except (ValueError, RecursionError) as error:  # dates and numbers that there are not
        raise FileError(str(path), f"is not YAML: {error}") from None


class _Loader(yaml.SafeLoader):
    """Read YAML as `safe_load` does, but refuse a key that comes twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    problem = f"the key {key.value!r} comes twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def check_version(data: object, version: int, file: str, what: str) -> None:
    """Refuse a file that holds no mapping, or one that another release wrote.

    Args:
        data: What the file holds.
        version: The version that this release reads.
        what: What the file should be, such as `job`.

    Raises:
        FileError: Names the version found and the one that is read.
    """
    if not isinstance(data, dict):
        problem = f"is empty: it holds no {what}" if data is None else f"holds no {what}"
        raise FileError(file, problem, allowed="a mapping of keys to values")
    found = data.get("version", version)
    if type(found) is not int or found != version:
        problem = f"this release of rlplan cannot read a {what} of this version"
        raise FileError(file, problem, field="version", value=found, allowed=str(version))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileError(
            str(path), "no such file", nearest=nearest_name(path.name, siblings)
        ) from None
    except IsADirectoryError:
        raise FileError(str(path), "is a folder, not a file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(str(path), error) from None


def _as_file_error(kind: type[Any], file: str, errors: list[ErrorDetails]) -> FileError:
    """Turn the error that lies deepest into our message; alternatives of a union lie less deep."""
    error = max(errors, key=lambda item: (_rank(item), len(item["loc"])))
    location = [part for part in error["loc"] if not _is_union_tag(part)]
    field = ".".join(str(part) for part in location) or None
    value = error.get("input")
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = _fields_at(kind, location[:-1])
        return FileError(
            file,
            "unknown key",
            field=field,
            allowed=", ".join(known) or None,
            nearest=nearest_name(str(location[-1]), known),
        )
    if error["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return FileError(file, "is missing", field=field)
    context = error.get("ctx", {})
    if error["type"] == "union_tag_not_found":
        return FileError(
            file,
            f"needs the key {context['discriminator']}, or a plain number",
            field=field,
            allowed=", ".join(sorted(_tags_of(field))),
        )
    allowed = str(context["expected"]) if "expected" in context else context.get("expected_tags")
    names = [part.strip(" '") for part in str(allowed or "").replace(" or ", ", ").split(",")]
    return FileError(
        file,
        _PROBLEMS.get(error["type"]) or error["msg"][0].lower() + error["msg"][1:],
        field=field,
        value=_shown(value),
        allowed=", ".join(names) or None,
        nearest=nearest_name(str(value), names) if isinstance(value, str) else None,
    )


# What we say in place of words that speak of Python's types.
_PROBLEMS = {
    "dataclass_type": "must be a mapping of keys to values",
    "dict_type": "must be a mapping of keys to values",
    "tuple_type": "must be a list",
    "string_type": "must be text",
    "recursion_loop": "contains itself",
    "literal_error": "is not allowed",
}
_LONGEST_SHOWN = 200


def _shown(value: Any) -> str | int | float | bool:
    """Return a value as messages show it: long ones are cut, collections are named."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "..."
    if isinstance(value, (int, float)):
        return value
    names = {dict: "a mapping", list: "a list", tuple: "a list", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)


def _rank(error: ErrorDetails) -> int:
    """Prefer errors of content over `this alternative of a union has another shape`."""
    shapes = ("dataclass_type", "int_type", "float_type", "string_type", "dict_type")
    return 0 if error["type"] in shapes else 1


def _is_union_tag(part: int | str) -> bool:
    """Tell whether a location's part names a type or alternative rather than a key of the file."""
    return isinstance(part, str) and (
        part[:1].isupper() or "[" in part or part in _SCALARS or part in _TAGS
    )


_SCALARS = frozenset({"int", "str", "float", "bool", "constrained-int", "constrained-float"})
_LENGTH_TAGS = frozenset({"lognormal", "uniform", "empirical", "logged", "trace"})
_SECONDS_TAGS = frozenset({"lognormal", "uniform", "empirical", "percentiles"})
_TAGS = _LENGTH_TAGS | _SECONDS_TAGS


def _tags_of(field: str | None) -> frozenset[str]:
    """Return the distributions that a field may name: of seconds, or of tokens."""
    return _SECONDS_TAGS if (field or "").endswith("_seconds") else _LENGTH_TAGS


def _fields_at(kind: Any, location: Iterable[int | str]) -> list[str]:
    """Return the field names of the dataclass that lies at a location of `kind`."""
    candidates = [kind]
    for part in location:
        following: list[Any] = []
        for candidate in _dataclasses_in(candidates):
            hints = get_type_hints(candidate)
            if part in hints:
                following.append(hints[str(part)])
        candidates = following or [
            arg for item in candidates for arg in getattr(item, "__args__", ())
        ]
    return sorted(
        {field.name for kind in _dataclasses_in(candidates) for field in dataclasses.fields(kind)}
    )


def _dataclasses_in(kinds: Iterable[Any]) -> list[Any]:
    found = []
    for kind in kinds:
        if dataclasses.is_dataclass(kind):
            found.append(kind)
        else:
            found.extend(_dataclasses_in(getattr(kind, "__args__", ())))
    return found
