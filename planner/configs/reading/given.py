"""Values of a configuration: one flat mapping of dotted keys, each with where it was given."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import yaml

from rlplan.planner.configs.shell.programs import Gap, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenValue:
    """Hold the value of one key.

    Attributes:
        value: A scalar, or a list of them.
        where: The file and line, or the argument.
        gaps: What of it could not be evaluated.
        older: The name by which an older version of the framework knows the key; empty where it is the key.
        added: Whether it is given as a key that the framework's own configuration may not have.
    """

    value: object
    where: str
    gaps: tuple[Gap, ...] = ()
    older: str = ""
    added: bool = False


# A name in a mapping and its colon, where no space follows, as hydra allows.
UNSPACED: Final = re.compile(r"([{,]\s*[\w.\-]+):(?=[^\s/])")

Flat = dict[str, GivenValue]


def scalar(text: str) -> object:
    """Return what a word of a command line means: a number, a truth, a list, nothing, or itself."""
    if "\n" in text or "\t" in text:
        return text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str):
        # YAML 1.1 takes 1e-6 for a word.
        try:
            return float(value) if value[:1] in "+-.0123456789" and value else value
        except ValueError:
            return value
    return value if value is None or isinstance(value, bool | int | float | list) else text


def leaves(key: str, text: str) -> Iterator[tuple[str, object]]:
    """Yield the keys and values that a word of a command line sets: several where it is a mapping, as `{a: 1}`."""
    data = _mapping(text)
    if data:
        yield from _flat(key, data)
    else:
        yield key, scalar(text) if data is None else data


def _mapping(text: str) -> dict[str, object] | None:
    """Return the mapping that a word stands for, as YAML or hydra write it (`{a:1}`); None where it is none."""
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        data = yaml.safe_load(UNSPACED.sub(r"\1: ", text))
    except yaml.YAMLError:
        return None
    return data if isinstance(data, dict) and all(isinstance(key, str) for key in data) else None


def _flat(key: str, data: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(f"{key}.{name}", value)
        else:
            yield f"{key}.{name}", value


def place_of(text: Text, file: str) -> str:
    """Return where a word was given, for people."""
    return f"{file}:{text.line}" if text.line else "the command line"
