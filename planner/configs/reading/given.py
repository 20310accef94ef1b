"""Values of a configuration: one flat mapping of dotted keys, each with where it was given."""

from dataclasses import dataclass

import yaml

from planner.configs.shell.text import Gap, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
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


Flat = dict[str, Given]


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


def place_of(text: Text, file: str) -> str:
    """Return where a word was given, for people."""
    return f"{file}:{text.line}" if text.line else "the command line"
