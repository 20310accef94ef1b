"""Arguments of command lines: overrides of hydra, or flags of argparse."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rlplan.planner.configs.reading.composed import CONFIG_FLAGS
from rlplan.planner.configs.reading.given import (
    Flat,
    GivenValue,
    flags_of,
    leaves,
    place_of,
    renamed,
    scalar,
)
from rlplan.planner.configs.reading.scripts import OVERRIDE
from rlplan.planner.configs.reading.sheet import ConfigSheet
from rlplan.planner.configs.reading.toml_files import toml_keys
from rlplan.planner.configs.shell.text import Text

# What a launcher starts with the overrides behind it.
PROGRAM: Final = ".py"


def arguments_of(sheet: ConfigSheet, words: list[Text], file: str) -> Flat:
    """Return the values of a command line's arguments."""
    if sheet.arguments == "toml":
        return toml_keys(sheet, words, Path(), file)
    given = _flags(sheet, words, file) if sheet.arguments == "flags" else overrides_of(words, file)
    return renamed(given, sheet.name_of)


def overrides_of(words: Sequence[Text], file: str) -> Flat:
    """Return the values of hydra's overrides."""
    flat: Flat = {}
    flag = ""
    for word in words:
        if flag or word.value in CONFIG_FLAGS:
            if flag and flag != "--config":
                flat[flag] = _given(word, word.value, file)
            flag = "" if flag else CONFIG_FLAGS[word.value]
            continue
        found = OVERRIDE.match(word.value)
        if word.value.startswith("-"):
            name, _, value = word.value.partition("=")
            long = CONFIG_FLAGS.get(name, f"--{name.lstrip('-')}")
            flat[long] = _given(word, value or "true", file)
        elif found is None:
            if word.value.startswith("~"):
                flat.pop(word.value[1:], None)
            elif word.value.strip() and not word.value.endswith(PROGRAM):
                flat[word.value] = _given(word, "", file)
        elif found[1] == "~":
            flat.pop(found[2], None)
        else:
            for key, leaf in leaves(found[2], found[3]):
                given = replace(_given(word, "", file), value=leaf)
                flat[key] = replace(given, added=bool(found[1]))
    return flat


def _flags(sheet: ConfigSheet, words: list[Text], file: str) -> Flat:
    settings = (*sheet.settings.values(), *sheet.losses.values())
    switches = (
        key
        for each in settings
        if isinstance(each.default, bool) or "True" in each.values
        for key in each.keys
    )
    return flags_of(words, file, frozenset(switches), valued=sheet.valued_switches)


def _given(word: Text, value: str, file: str) -> GivenValue:
    return GivenValue(value=scalar(value), where=place_of(word, file), gaps=word.gaps)
