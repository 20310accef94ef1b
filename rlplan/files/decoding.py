"""Read files strictly: every mistake becomes one message with file, field, value and nearest fix.

A file is a regular one of a bounded size, read whole.
"""

import codecs
import dataclasses
import json
import re
import stat
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints

from rlplan.errors import FileError, nearest_name, unreadable

if TYPE_CHECKING:
    import yaml
    from pydantic import ConfigDict, TypeAdapter
    from pydantic_core import ErrorDetails

# Far more than any file that people or frameworks write for a command to read whole: the logs of ten
# thousand steps or the measurements of a million tasks are below it.
LARGEST_FILE_BYTES = 2**28

# What files in UTF-16 begin with: so Windows writes them where it says Unicode, and PowerShell what `>` and Tee-Object keep.
# The mark of UTF-32 comes first, since the one of its little-endian kind begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}
# The encodings of such a mark alone, as bytes are written behind it.
_KINDS = {
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    codecs.BOM_UTF8: "utf-8",
}

_URL = re.compile(r"[a-z][a-z0-9+.-]*://")


def is_url(place: str) -> bool:
    """Tell whether a place is named by a URL."""
    return _URL.match(place) is not None


def check_regular(path: Path, most_bytes: int | None = LARGEST_FILE_BYTES) -> None:
    """Refuse what is no regular file (a device would not end, a pipe would wait), or a huge one.

    Args:
        most_bytes: None: however large, for what is read in pieces.

    Raises:
        FileError: Says what is there instead, or how large it is.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileError(
            str(path), "no such file", nearest=nearest_name(path.name, siblings)
        ) from None
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError):  # a name with a zero byte
            raise FileError(str(path), f"cannot be read: {error}") from None
        raise unreadable(str(path), error) from None
    if stat.S_ISDIR(found.st_mode):
        raise FileError(str(path), "is a folder, not a file")
    if not stat.S_ISREG(found.st_mode):
        raise FileError(
            str(path), "is a device, pipe or socket", allowed="a regular file; copy into one first"
        )
    if most_bytes is not None and found.st_size > most_bytes:
        problem = f"is too large to be read: {found.st_size:,} bytes"
        raise FileError(str(path), problem, allowed=f"at most {most_bytes:,} bytes")


def encoding_of(path: Path) -> str:
    """Return the encoding of a text file: UTF-8, or UTF-16 or UTF-32 where its first bytes say so; such bytes are no text.

    Raises:
        OSError: It cannot be read.
    """
    return _MARKS.get(_mark_of(path), "utf-8-sig")


def encoded_as(path: Path, text: str) -> bytes:
    """Return a text in the encoding of a file that is there, behind the mark that it begins with.

    Raises:
        OSError: The file cannot be read.
    """
    mark = _mark_of(path)
    return mark + text.encode(_KINDS.get(mark, "utf-8"))


def _mark_of(path: Path) -> bytes:
    """Return the bytes that a file begins with to say its encoding; none where it says nothing."""
    with path.open("rb") as file:
        first = file.read(max(map(len, _MARKS)))
    return next((mark for mark in _MARKS if first.startswith(mark)), b"")


def text_of(path: Path, errors: str = "strict") -> str:
    """Return the text of a file in its encoding.

    Raises:
        OSError: It cannot be read.
        UnicodeDecodeError: It holds no text.
    """
    return path.read_text(encoding=encoding_of(path), errors=errors)


def read_text(
    path: Path, *, most_bytes: int | None = LARGEST_FILE_BYTES, errors: str = "strict"
) -> str:
    """Return the text of a regular file.

    Args:
        most_bytes: Largest size that is read; None reads however much there is.
        errors: What becomes of bytes that are no text, as `open` has it.

    Raises:
        FileError: The file is missing, is none, is too large, or holds no text.
    """
    check_regular(path, most_bytes)
    try:
        return text_of(path, errors)
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(str(path), error) from None


T = TypeVar("T")

# YAML is read at about 100 kB a second; jobs and plans have some thousands of bytes, and the longest lists
# of lengths that a plan holds (4,096) some tens of thousands.
LARGEST_YAML_BYTES = 2**21
# Files that start a training, and are no job.
OF_SCRIPTS = frozenset({".sh", ".bash", ".py", ".ipynb", ".slurm", ".sbatch", ".toml"})
# Files of jobs and plans, and of frameworks' recipes.
OF_YAML = frozenset({".yaml", ".yml", ".json"})
# A key that every job's file has at its top and no framework's recipe; `job`, which every plan's has, a recipe may have too, as a
# key of its user's: a plan has one of these beside it, if anything.
_OF_ANY_JOB, _OF_PLANS = "workload", frozenset({"pools", "tasks"})
# One of them in a text that need not be YAML.
_OF_JOBS = re.compile(rb"\b(?:workload|job)[\"']?\s*:")
# Of a file whose ending says nothing, what is looked at: a script's command stands at its end, a job's keys from its begin on.
_LOOKED_AT_BYTES = 2**16

STRICT: "ConfigDict" = {"extra": "forbid", "strict": False, "allow_inf_nan": False}


@cache
def adapter(kind: Any) -> "TypeAdapter[Any]":
    """Return the reader of a type, built once; unknown keys are refused at every level."""
    from pydantic import TypeAdapter

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
    from pydantic import ValidationError

    try:
        value: T = adapter(cast("Hashable", kind)).validate_python(data)
    except ValidationError as error:
        raise _as_file_error(kind, data, file, error.errors(include_url=False)) from None
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
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise FileError(str(path), f"is not JSON: {error}") from None


def load_yaml(path: Path, *, repeats: bool = False) -> Any:
    """Return what a YAML file holds, as dicts and lists.

    Args:
        repeats: Take the last value of a key that comes twice, as YAML's readers usually do; without it such a key is refused.

    Raises:
        FileError: The file is missing or is no YAML.
    """
    import yaml

    try:
        text = read_text(path, most_bytes=LARGEST_YAML_BYTES)
        return yaml.load(text, Loader=_loader(repeats=repeats))  # noqa: S506, safe ones
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise FileError(str(path), f"is not YAML{where}: {problem}") from None
    except (ValueError, RecursionError) as error:  # dates and numbers that there are not
        raise FileError(str(path), f"is not YAML: {error}") from None


def is_of_a_job(data: Mapping[Any, object]) -> bool:
    """Tell whether the keys of a file are those of a job or a plan, whatever is wrong with it."""
    is_plan = "job" in data and (len(data) == 1 or not _OF_PLANS.isdisjoint(data))
    return _OF_ANY_JOB in data or is_plan


def is_own_file(path: Path) -> bool:
    """Tell whether a file is read as a job's or a plan's whatever framework is named: by its keys, or since it is no script.

    So is one that is missing: whoever reads it says what is wrong.

    Raises:
        FileError: It is YAML that is broken.
    """
    if not path.is_file():
        return True
    if path.suffix.lower() in OF_YAML:
        data = load_yaml(path, repeats=True)  # frameworks whose files are plain YAML take the last
        return not isinstance(data, dict) or is_of_a_job(data)
    if path.suffix.lower() in OF_SCRIPTS:
        return False
    with path.open("rb") as file:
        text = file.read(_LOOKED_AT_BYTES)
    return not text.startswith(b"#!") and _OF_JOBS.search(text) is not None


def repeated_key(root: "yaml.Node") -> "tuple[str, yaml.ScalarNode] | None":
    """Return a key that stands twice in one mapping, with the path of that mapping; None where each comes once.

    What is asked is composed and not constructed yet: that puts what a mapping merges (`<<`) beside its own keys.
    """
    import yaml

    waiting: list[tuple[str, yaml.Node]] = [("", root)]
    looked_at: set[int] = set()
    while waiting:
        path, node = waiting.pop()
        if id(node) in looked_at:  # an alias of it
            continue
        looked_at.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += [(f"{path}[{place}]", each) for place, each in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            continue
        keys: set[str] = set()
        for key, value in node.value:
            waiting.append((f"{path}.{key.value}" if path else f"{key.value}", value))
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in keys:
                    return path, key
                keys.add(key.value)
    return None


@cache
def _loader(*, repeats: bool) -> "type[yaml.SafeLoader | yaml.CSafeLoader]":
    """Return the class that reads YAML: with libyaml's parser where there is one, in a quarter of the time."""
    import yaml

    class Strict(yaml.constructor.SafeConstructor):
        """Construct values as `safe_load` does, but refuse a key that comes twice unless it may."""

        def construct_document(self, node: yaml.Node) -> Any:
            again = None if repeats else repeated_key(node)
            if again is not None:
                key = again[1]
                problem = f"the key {key.value!r} comes twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            return super().construct_document(node)

    if not yaml.__with_libyaml__:

        class Loader(Strict, yaml.SafeLoader):
            """Read YAML with what every PyYAML has."""

        return Loader

    # The composer is Python's: that of libyaml ends the process where collections nest too deeply.
    class QuickLoader(Strict, yaml.composer.Composer, yaml.CSafeLoader):
        """Read YAML with libyaml's parser."""

        def __init__(self, stream: str) -> None:
            yaml.CSafeLoader.__init__(self, stream)
            yaml.composer.Composer.__init__(self)

    return QuickLoader


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


def _as_file_error(
    kind: type[Any], data: object, file: str, errors: "list[ErrorDetails]"
) -> FileError:
    """Turn the error that lies deepest into our message; alternatives of a union lie less deep."""
    error = max(errors, key=lambda item: (_rank(item), len(item["loc"]), item["type"] in _UNKNOWN))
    location = _keys_of(error, data)
    field = ".".join(str(part) for part in location) or None
    value = error.get("input")
    if error["type"] in _UNKNOWN:
        known = _fields_at(kind, location[:-1], set(error["loc"]) - set(location))
        return FileError(
            file,
            "unknown key",
            field=field,
            allowed=", ".join(known) or None,
            nearest=nearest_name(str(location[-1]), known),
        )
    if error["type"] in _MISSING:
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
        allowed=", ".join(names) or _range_words(context),
        nearest=nearest_name(value, names) if isinstance(value, str) else None,
    )


def _range_words(context: Mapping[str, Any]) -> str | None:
    """Return the limit that a number breaks; None where it is something else that is wrong."""
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    said = (f"{word} {context[key]:g}" for key, word in words.items() if key in context)
    return next(said, None)


# What we say in place of words that speak of Python's types.
_PROBLEMS = {
    "dataclass_type": "must be a mapping of keys to values",
    "dict_type": "must be a mapping of keys to values",
    "tuple_type": "must be a list",
    "string_type": "must be text",
    "recursion_loop": "contains itself",
    "literal_error": "is not allowed",
}


def _shown(value: Any) -> str | int | float | bool:
    """Return a value as messages show it: collections are named."""
    if isinstance(value, (str, int, float)):
        return value
    names = {dict: "a mapping", list: "a list", tuple: "a list", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)


def _rank(error: "ErrorDetails") -> int:
    """Prefer errors of content over `this alternative of a union has another shape`."""
    shapes = ("dataclass_type", "int_type", "float_type", "string_type", "dict_type")
    return 0 if error["type"] in shapes else 1


def _keys_of(error: "ErrorDetails", data: object) -> tuple[int | str, ...]:
    """Return the keys of the file that lead to an error, without what a location says of types.

    Between keys, a location names types and alternatives of unions (`int`, `ModelArchitecture`,
    `lognormal`), and a key may have any such name. What the file holds tells them apart: its keys lead
    to the value that was found wrong, or to the mapping in which one is missing.
    """
    location, wrong = error["loc"], error.get("input")
    if error["type"] in _MISSING:
        found = _path_to(location[:-1], data, wrong)
        return location if found is None else (*found, location[-1])
    found = _path_to(location, data, wrong)
    # A key that is wrong itself: nothing that the file holds under it is at fault.
    return tuple(part for part in location if part != "[key]") if found is None else found


def _path_to(
    location: tuple[int | str, ...], data: object, wrong: object
) -> tuple[int | str, ...] | None:
    """Return the parts of a location that lead through `data` to a value; None where none do."""
    if not location:
        return () if data is wrong else None
    part, rest = location[0], location[1:]
    if isinstance(data, dict):
        held = data.get(part, _ABSENT)
    else:
        is_place = isinstance(data, list) and isinstance(part, int) and part < len(data)
        held = data[part] if is_place else _ABSENT  # type: ignore[index]
    deeper = None if held is _ABSENT else _path_to(rest, held, wrong)
    return _path_to(rest, data, wrong) if deeper is None else (part, *deeper)


_ABSENT = object()
_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
_MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")
_LENGTH_TAGS = frozenset({"lognormal", "uniform", "empirical", "logged", "trace"})
_SECONDS_TAGS = frozenset({"lognormal", "uniform", "empirical", "percentiles"})


def _tags_of(field: str | None) -> frozenset[str]:
    """Return the distributions that a field may name: of seconds, or of tokens."""
    return _SECONDS_TAGS if (field or "").endswith("_seconds") else _LENGTH_TAGS


def _fields_at(
    kind: Any, location: Iterable[int | str], alternatives: Iterable[int | str]
) -> list[str]:
    """Return the field names of the dataclass that lies at a location of `kind`.

    Args:
        alternatives: What the error says of which member of a union was meant.
    """
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
    found = [dataclasses.fields(each) for each in _dataclasses_in(candidates)]
    meant = [each for each in found if {field.default for field in each} & set(alternatives)]
    return sorted({field.name for each in meant or found for field in each})


def _dataclasses_in(kinds: Iterable[Any]) -> list[Any]:
    found = []
    for kind in kinds:
        if dataclasses.is_dataclass(kind):
            found.append(kind)
        else:
            found.extend(_dataclasses_in(getattr(kind, "__args__", ())))
    return found
