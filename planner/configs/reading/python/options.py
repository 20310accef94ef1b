"""What argparse makes of what stands on a command line, by how an option is added."""

import ast
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from rlplan.planner.configs.reading.given import GivenValue, scalar
from rlplan.planner.configs.reading.python.syntax import begins_with, dotted
from rlplan.planner.configs.reading.python.values import (
    UnknownValueError,
    known,
    named_arguments,
)

SWITCHES: Final = {"store_true": True, "store_false": False}
# The action by which `--no-x` turns off what `--x` turns on.
NEGATED: Final = "BooleanOptionalAction"


def given_as(
    names: Sequence[str],
    call: ast.Call | None,
    flags: Mapping[str, GivenValue],
    words: Sequence[object],
    options: Collection[str],
) -> Any:  # noqa: ANN401 -- whatever stands there
    """Return what an option is given; None where it is not.

    Args:
        names: Its own.
        call: What adds it; None where that is not in the program.
        flags: Those that are given.
        words: All that stands behind the program.
        options: Names of all that the program has.

    Raises:
        UnknownValueError: It is not known.
    """
    both = [spelt for each in names for spelt in (each, each.replace("_", "-"))]
    given = _given_for(both, flags, options)
    if given is None:
        return None if call is None else _given_otherwise(call, both, flags, words)
    if given.gaps:
        raise UnknownValueError(f"is what {given.gaps[0].source} is")
    return parsed(call, given.value)


def _given_for(
    names: Sequence[str], flags: Mapping[str, GivenValue], options: Collection[str]
) -> GivenValue | None:
    """Return what one of an option's flags is given; argparse takes the beginning of a flag for it where only one begins so."""
    given = next((flags[each] for each in names if each in flags), None)
    if given is not None:
        return given
    known_as = [each for each in options if each in names]
    begun = [each for each in flags if any(map(begins_with(each), known_as))]
    others = [each for each in options if each not in names]
    only = [each for each in begun if not any(map(begins_with(each), others))]
    return flags[only[0]] if only else None


def action_of(call: ast.Call) -> str:
    """Return what is done with an option's value; empty where it is stored."""
    action = named_arguments(call).get("action")
    if isinstance(action, ast.Constant):
        return str(action.value)
    return "" if action is None else dotted(action).rpartition(".")[2]


def parsed(call: ast.Call | None, value: Any) -> Any:  # noqa: ANN401 -- whatever stands there
    """Return what an option is that is given, by its value; True where none stands behind it.

    Raises:
        UnknownValueError: Something else is made of it, as by `count` and `append`, or `const` stands for it.
    """
    if call is None:
        return value
    action = action_of(call)
    if action in SWITCHES:
        return SWITCHES[action] if value is True else value
    is_other = action not in {"", "store", NEGATED}
    if is_other or (value is True and "const" in named_arguments(call)):
        raise UnknownValueError("is what the program makes of an option")
    return value


def _given_otherwise(
    call: ast.Call, names: Sequence[str], flags: Collection[str], words: Sequence[object]
) -> Any:  # noqa: ANN401
    """Return what an option is given by a short flag (`-n 8`), or turned off by (`--no-n`); None where it is not."""
    action = action_of(call)
    if action == NEGATED and any(f"no-{each}" in flags for each in names):
        return False
    written = [str(each.value) for each in call.args if isinstance(each, ast.Constant)]
    short = {each for each in written if each.startswith("-") and not each.startswith("--")}
    at = next((at for at, word in enumerate(words) if str(word) in short), None)
    if at is None:
        return None
    if action or at + 1 == len(words):
        return parsed(call, value=True)
    return scalar(str(known(words[at + 1])))
