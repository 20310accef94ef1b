"""Launch scripts: variables for what no plan says, then one command with one key a line."""

import shlex
from collections.abc import Callable

from rlplan.planner.configs.writing.export import Export, Value, Variable

Word = Callable[[str, str], str]


def launch_script(export: Export, start: str, word: Word) -> str:
    """Return a script that starts what an export has written.

    Args:
        start: What stands before the keys.
        word: How a key and its value, quoted already, stand on the command line.
    """
    variables = {each.name: each for each in export.values.values() if isinstance(each, Variable)}
    lines = [
        "#!/usr/bin/env bash",
        export.headline,
        *(f"# {note}" for note in export.notes),
        "set -euo pipefail",
        "",
        *(line for each in variables.values() for line in _assignment(each)),
        "",
        f"{start} \\",
        *(f"    {word(key, _quoted(value))} \\" for key, value in export.values.items()),
        '    "$@"',
    ]
    return "\n".join(lines) + "\n"


def as_flag(key: str, value: str) -> str:
    """Return a key and its value as a flag of argparse; a switch has no value."""
    return f"--{key}" if value == "True" else f"--{key} {value}"


def _assignment(variable: Variable) -> tuple[str, str]:
    """Return a comment and the line that sets a variable nobody has set."""
    default = variable.default
    usual = f":-{shlex.quote(default)}" if default is not None else f":?{variable.meaning}"
    return f"# {variable.meaning}", f'{variable.name}="${{{variable.name}{usual}}}"'


def _quoted(value: Value) -> str:
    if isinstance(value, Variable):
        return f'"${{{value.name}}}"'
    if isinstance(value, tuple):
        return " ".join(_quoted(each) for each in value)
    return "null" if value is None else shlex.quote(f"{value}")
