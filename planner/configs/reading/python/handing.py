"""What a Python program hands to a shell, whatever that starts: `subprocess.run([...])`, `os.system`, also in a function of Modal's."""

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from rlplan.errors import FileError
from rlplan.planner.configs.reading.python.launcher import RUNS, Launcher
from rlplan.planner.configs.reading.python.launcher_values import Code
from rlplan.planner.configs.reading.python.launching import Launched, launched_of
from rlplan.planner.configs.reading.python.played import Played
from rlplan.planner.configs.reading.python.syntax import (
    decorators_of,
    dotted,
    fits,
    is_program_with,
    tree_of,
)

# What tells that a command starts a program, or a program's training.
STARTS_PROGRAM: Final = re.compile(r"\.(py|sh|slurm|sbatch|bash)\b|(^|\s)-m\s|^(trl|swift|rl)\s")
_HANDS_ON: Final = re.compile(r"\bsubprocess\b|\bos\.system\(")
# Functions that nothing in the program calls: `modal run` does.
SENT: Final = ("*.function", "*.cls", "*.method")


def is_handing(path: Path) -> bool:
    """Tell whether a file is a Python program that hands commands to a shell."""
    return is_program_with(_HANDS_ON, path)


def handed_by(path: Path, words: Iterable[str], environment: Mapping[str, str]) -> Launched:
    """Return the commands that a program hands to a shell and that start a program.

    Args:
        words: Its options.
        environment: Variables that are set before it starts.

    Raises:
        FileError: It is no Python, has no such option, stops before, or hands on nothing that starts one.
    """
    program = _Handing(path, tree_of(path), dict(environment), list(words))
    program.calls, program.given, program.trees = (), {}, {}
    return launched_of(program)


def commands_handed_by(path: Path, words: tuple[str, ...]) -> str:
    """Return the text of the commands that a program hands to a shell; empty where it hands none on that are known."""
    if not is_handing(path):
        return ""
    state = path.stat()
    return _commands_of(path, words, (state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=8)
def _commands_of(path: Path, words: tuple[str, ...], _state: tuple[int, int]) -> str:
    """Return these as the file is now, which may be written anew while a page or an agent asks: each framework asks for them."""
    try:
        return handed_by(path, words, {}).text
    except FileError:
        return ""


class _Handing(Played):
    """Follow a program's statements, for whatever it hands to a shell."""

    launches = STARTS_PROGRAM
    # Commands are texts: what may be added to one is left out of it, and named.
    only_adds = Launcher.only_adds

    def play(self) -> None:
        """Follow the whole program; then the functions that what is put around them starts."""
        super().play()
        if not self.commands:
            self.start_by_itself()
        if not self.commands:
            for code in [each for each in self.names.values() if isinstance(each, Code)]:
                own = () if isinstance(code.node, ast.Lambda) else decorators_of(code.node)
                if not self.commands and any(fits(name, SENT) for name, _ in own):
                    self._started(code)

    def starts_in(self, body: Sequence[ast.stmt]) -> bool:
        """Tell whether a command is handed to a shell in a block."""
        calls = (each for part in body for each in ast.walk(part) if isinstance(each, ast.Call))
        return any(fits(dotted(each.func).rpartition(".")[2], RUNS) for each in calls)
