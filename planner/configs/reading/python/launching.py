"""What a Python program hands to a shell that starts a training, as a script's text."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlplan.errors import FileError
from rlplan.planner.configs.reading.python.launcher import Launcher
from rlplan.planner.configs.reading.python.launcher_errors import StopError
from rlplan.planner.configs.reading.python.syntax import tree_of
from rlplan.planner.configs.shell.text import Gap, Text, at_their_lines

OWN_DEFAULTS: Final = "options that {} is not given are as it has them: {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """Hold what a program hands to a shell.

    Attributes:
        text: The commands that start a training, on the lines on which the program hands them on.
        variables: What the text's own variables stand for: what is not known.
        gaps: What of the program was left out since only a run would decide.
        options: What is said of its options that are not given; empty where it has none.
    """

    text: str
    variables: Mapping[str, Text]
    gaps: tuple[Gap, ...] = ()
    options: str = ""


def launched_by(path: Path, words: Iterable[str], environment: Mapping[str, str]) -> Launched:
    """Return what a program hands to a shell to start a training.

    Args:
        words: Its options.
        environment: Variables that are set before it starts.

    Raises:
        FileError: It is no Python, has no such option, stops before, or hands on nothing that starts a training.
    """
    return launched_of(Launcher(path, tree_of(path), dict(environment), list(words)))


def launched_of(program: Launcher) -> Launched:
    """Return what a program hands to a shell that is followed from its first line.

    Raises:
        FileError: It stops before, or hands on nothing that starts a training.
    """
    path = program.path
    try:
        program.play()
    except StopError as stop:
        if not program.commands:
            problem = f"the program stops here: {stop.reason}"
            raise FileError(f"{path}:{stop.line}", problem) from None
    except RecursionError:
        raise FileError(str(path), "is nested too deeply") from None
    if not program.commands:
        problem = "is a Python program, of which nothing is run: it is not seen to start a training"
        allowed = "a script, or behind -- the command that it prints"
        raise FileError(str(path), problem, allowed=allowed)
    return Launched(
        text=at_their_lines(program.commands),
        variables=program.gaps,
        gaps=tuple(dict.fromkeys(program.left)),
        options=program.taken(),
    )
