"""Values of a configuration: one flat mapping of dotted keys, each with where it was given."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import yaml

from rlplan.planner.configs.shell.text import Gap, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenValue:
    """Hold the value of one key.

    Attributes:
        value: A scalar, or a list of them.
        where: The file and line, or the argument.
        gaps: What of it could not be evaluated.
        older: The name by which an older version of the framework knows the key; empty where it is the key.
        added: Whether it is given as a key that the framework's own configuration may not have.
        taken: Defaults of a program's own that it is made of, since nothing gives other values: `--size 4`.
    """

    value: object
    where: str
    gaps: tuple[Gap, ...] = ()
    older: str = ""
    added: bool = False
    taken: tuple[str, ...] = ()


# How a flag's mapping begins, as JSON or Python write it; `{name}` in braces is a word.
JSON_MAPPING: Final = re.compile(r"""\s*\{\s*["'\}]""")
# What names of keys have that say how much is done.
OF_WORK: Final = re.compile(
    r"turn|round|vote|agent|batch|sample|obs|retr|search|branch|tree|max_|num_|\bn_"
)
# A name in a mapping and its colon, where no space follows, as hydra allows.
UNSPACED: Final = re.compile(r"([{,]\s*[\w.\-]+):(?=[^\s/])")

Flat = dict[str, GivenValue]
# Where a value stands that is known of a framework's own file, which is not at hand.
NOT_THERE: Final = ", which is not at hand"


def renamed(flat: Flat, today: Callable[[str], str]) -> Flat:
    """Return values by the names that their keys have in the sheet.

    Args:
        today: Returns the name there of a key by any name that it has had.
    """
    return {
        today(key): each if today(key) == key else replace(each, older=key)
        for key, each in flat.items()
    }


def scalar(text: str) -> object:
    """Return what a word of a command line means: a number, a truth, a list, nothing, or itself."""
    value = _scalar(text)
    return deepcopy(value) if isinstance(value, list) else value


@lru_cache(maxsize=65536)
def _scalar(text: str) -> object:
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
        yield from nested_leaves(key, data)
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


# What stands in place of words that a command would print.
UNKNOWN_WORD: Final = "$(...)"


# A word that may be any flags: what a program does not know, or a variable of the shell that is a word of its own.
_UNKNOWN: Final = re.compile(rf"{re.escape(UNKNOWN_WORD)}|\$\{{?\w+\}}?")


def flags_of(
    words: Iterable[Text], file: str, switches: Collection[str] = (), *, valued: bool = False
) -> Flat:
    """Return the values of argparse's flags: one word, several, or none for a switch; a mapping has keys of its own.

    What could not be evaluated behind a switch, or behind a flag's value, stands for flags that nobody knows.

    Args:
        valued: Whether switches may have a value too: `--bf16 $BF16`.
    """
    flat: Flat = {}
    name, values = "", list[Text]()

    def keep() -> None:
        if not name:
            return
        first = values[0] if values else None
        gaps = tuple(gap for word in values for gap in word.gaps)
        where = place_of(first or flag, file)
        if len(values) > 1:
            said: list[tuple[str, object]] = [(name, [scalar(word.value) for word in values])]
        elif first is None:
            said = [(name, True)]
        else:
            is_json = JSON_MAPPING.match(first.value)
            said = list(leaves(name, first.value)) if is_json else [(name, scalar(first.value))]
        for key, value in said:
            flat[key] = GivenValue(value=value, where=where, gaps=gaps)

    flag = Text("")
    for word in words:
        if word.value.startswith("--"):
            keep()
            head, equals, tail = word.value.removeprefix("--").partition("=")
            flag, name, values = word, head, [word.with_value(tail)] if equals else []
        elif (
            word.gaps
            and _UNKNOWN.fullmatch(word.value)
            and (values or (name in switches and (not valued or word.value == UNKNOWN_WORD)))
        ):
            gap = word.gaps[0]
            flat[gap.source] = GivenValue(
                value=gap.reason, where=place_of(word, file), gaps=word.gaps
            )
        elif word.value.strip() and word.value != "\\":
            values.append(word)
    keep()
    return flat


def nested_leaves(key: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the keys and values of what a key has: several where it is a mapping."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from nested_leaves(f"{key}.{name}" if key else str(name), inner)
    else:
        yield key, value


def place_of(text: Text, file: str) -> str:
    """Return where a word was given, for people."""
    return f"{file}:{text.line}" if text.line else "the command line"
