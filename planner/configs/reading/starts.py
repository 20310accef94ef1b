"""Find what a command starts: a framework's own module, a fork's with the framework's keys, or none of both."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from planner.configs.reading.settings import fits_any
from planner.configs.reading.sheet import ConfigSheet
from planner.configs.shell.commands import Command
from planner.configs.shell.text import Text

# `key=value`, with what hydra puts before a key that is new, or `group@package=choice`.
OVERRIDE: Final = re.compile(r"^(\+\+|\+|~)?([\w@/.\-\[\]]+)=(.*)$", re.DOTALL)
# How many keys that no other program has tell a start whose name says nothing.
TELLING: Final = 2
# What runs the Python program that is named behind it, with options of its own between.
_PYTHON: Final = re.compile(
    r"(.*/)?(python[\d.]*|torchrun|deepspeed|accelerate|uv|poetry|pdm|hatch)|\$\{?\w*PYTHON\w*\}?"
)
# What of a word tells that it is a command in quotes, as `bash -c` gets it.
_QUOTED: Final = re.compile(r"\s-m\s|\.py(\s|$)|\.sh(\s|$)")
# A word in a command's place that is an argument of the command above: `trainer.nnodes=2`, `--actor.num_nodes`.
_ARGUMENT: Final = re.compile(
    r"[+~]*[\w@/\-]+(\.[\w@/\-\[\]]+)+=.*|--[a-z][\w.\-]*(=.*)?", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Hold what starts a training.

    Attributes:
        name: The module or script.
        arguments: What stands behind it.
        is_own: Whether it is the framework's own, not one that is taken as it.
    """

    name: str
    arguments: tuple[Text, ...]
    is_own: bool

    @property
    def folder(self) -> Path:
        """Return the folder of the module or script, from where it is started."""
        is_script = self.name.endswith(".py")
        return Path(self.name if is_script else self.name.replace(".", "/")).parent


def start_of(sheet: ConfigSheet, words: Sequence[Text], taken_as: str = "") -> Start | None:
    """Return what of a framework's training a command starts; None where it is none.

    Args:
        taken_as: A module or script that is taken as the framework's; its name takes whatever Python program there is.
    """
    for place, word in enumerate(words):
        if fits_any(word.value, sheet.starts):
            return Start(name=word.value, arguments=tuple(words[place + 1 :]), is_own=True)
    for name, arguments in programs_of(words):
        if _is_taken(sheet, name, taken_as) or (
            refusal_of(sheet, name) is None and _is_of_fork(sheet, name, arguments)
        ):
            return Start(name=name, arguments=arguments, is_own=False)
    return None


def _is_of_fork(sheet: ConfigSheet, name: str, arguments: tuple[Text, ...]) -> bool:
    """Return whether a program is a fork's start: by its keys, or by its name and one of them or a file of them."""
    telling = telling_keys(sheet, arguments)
    if len(telling) >= TELLING:
        return True
    has_file = any(word.value.startswith("--config") for word in arguments)
    return fits_any(name, sheet.fork_starts) and (bool(telling) or has_file)


def refusal_of(sheet: ConfigSheet, name: str) -> str | None:
    """Return what else than training with RL a module or script does; None where that is not known."""
    return next(
        (what for each, what in sheet.refused_starts.items() if fnmatchcase(name, each)), None
    )


def programs_of(words: Sequence[Text]) -> Iterator[tuple[str, tuple[Text, ...]]]:
    """Yield the Python modules and scripts that a command starts, each with what stands behind it."""
    has_python = False
    for place, word in enumerate(words):
        has_python = has_python or _PYTHON.fullmatch(word.value) is not None
        before = words[place - 1].value if place else ""
        is_module = before == "-m" and re.fullmatch(r"[\w.\-]+", word.value) is not None
        is_script = word.value.endswith(".py") and "=" not in word.value and before != "-c"
        if is_module or (is_script and (has_python or place == 0 or before == "run")):
            yield word.value, tuple(words[place + 1 :])


def telling_keys(sheet: ConfigSheet, arguments: Iterable[Text]) -> set[str]:
    """Return the keys among arguments that no other program has than a framework's training with RL."""
    keys = {_key_of(sheet, word.value) for word in arguments} - {""}
    return {key for key in keys if fits_any(key, sheet.start_keys)}


def chosen(
    sheet: ConfigSheet, starts: Sequence[tuple[int, Start]], taken_as: str
) -> tuple[int, Start]:
    """Return the start that is read: the last; of whatever Python programs there are, the last with most keys."""
    if taken_as != sheet.name:
        return starts[-1]
    keys = [sum(bool(_key_of(sheet, word.value)) for word in each.arguments) for _, each in starts]
    return max(zip(keys, starts, strict=True), key=lambda each: (each[0], each[1][0]))[1]


def _key_of(sheet: ConfigSheet, word: str) -> str:
    if sheet.arguments == "flags":
        return word.removeprefix("--").partition("=")[0] if word.startswith("--") else ""
    found = OVERRIDE.match(word)
    return "" if found is None else found[2]


def _is_taken(sheet: ConfigSheet, name: str, taken_as: str) -> bool:
    if taken_as == sheet.name:
        return True
    return bool(taken_as) and (name == taken_as or name.endswith(f"/{taken_as.removeprefix('./')}"))


def is_quoted(word: str) -> bool:
    """Return whether a word is a command, or several, in quotes."""
    text = word.strip()
    if OVERRIDE.match(text) or text.startswith(("{", "[")):
        return False
    return any(sign in text for sign in " \n\t") and _QUOTED.search(text) is not None


def lost_words(commands: Sequence[Command], place: int) -> tuple[int, tuple[str, ...]]:
    """Return which arguments stand below a command and are no part of it, and the line of the first.

    A comment, an empty line or a space behind a backslash ends a command; what is written below is one of its own
    for a shell, which knows no program of such a name.
    """
    lost: list[Text] = []
    for command in commands[place + 1 :]:
        if not command.words or not _ARGUMENT.fullmatch(command.words[0].value):
            break
        lost.extend(command.words)
    return (lost[0].line if lost else 0), tuple(word.value for word in lost)


def started_script(words: Sequence[Text], folder: Path) -> tuple[Path | None, list[Text]]:
    """Return the script that a command of another one starts, where it is at hand, and its arguments.

    Beside the one that starts it is looked for what stands in a folder that is not known.
    """
    for place, word in enumerate(words):
        if not word.value.endswith(SCRIPTS):
            continue
        before = words[place - 1].value if place else ""
        if place and Path(before).name not in STARTERS and not re.match(r"-|\w+=", before):
            return None, []
        named = Path(word.value)
        at_hand = (each for each in (named, folder / named, folder / named.name) if each.is_file())
        return next(at_hand, None), list(words[place + 1 :])
    return None, []


# What starts another script, and how such a script's file ends.
STARTERS: Final = frozenset(
    {"exec", "bash", "sh", "sbatch", "srun", "nohup", "env", "source", ".", "--", "time", "sudo"}
)
SCRIPTS: Final = (".sh", ".slurm", ".sbatch", ".bash")
