"""Commands of scripts: which are quoted, which words a broken continuation line loses, which other script one starts."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from rlplan.errors import FileError
from rlplan.files.decoding import text_of
from rlplan.planner.configs.reading.python.handing import handed_by
from rlplan.planner.configs.reading.python.launcher import STARTS, is_launcher
from rlplan.planner.configs.reading.python.launching import OWN_DEFAULTS, launched_by
from rlplan.planner.configs.reading.python.syntax import MOST_BYTES
from rlplan.planner.configs.reading.settings import Lost
from rlplan.planner.configs.shell.commands import LEAST_END, Command, Evaluated, above, ends_near
from rlplan.planner.configs.shell.script import evaluate
from rlplan.planner.configs.shell.text import Text

# `key=value`, with what hydra puts before a key that is new, or `group@package=choice`.
OVERRIDE: Final = re.compile(r"^(\+\+|\+|~)?([\w@/.\-\[\]]+)=(.*)$", re.DOTALL)
# What of a word tells that it is a command in quotes, as `bash -c` gets it.
_QUOTED: Final = re.compile(r"\s-m\s|\.py(\s|$)|\.sh(\s|$)")
# A variable in front of such a command, by the shell's own habit of capitals.
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*=\S*\s")
# A word in a command's place that is an argument of the command above: `trainer.nnodes=2`, `--actor.num_nodes`.
_ARGUMENT: Final = re.compile(
    r"[+~]*[\w@/\-]+(\.[\w@/\-\[\]]+)+=.*|--[a-z][\w.\-]*(=.*)?", re.DOTALL
)
# What runs the Python program that is named behind it, with options of its own between.
_PYTHON: Final = re.compile(
    r"(.*/)?(python[\d.]*|torchrun|deepspeed|accelerate|uv|poetry|pdm|hatch)|\$\{?\w*PYTHON\w*\}?"
)
# Behind which the name of a module stands, of Python and of launchers.
OF_MODULES: Final = frozenset({"-m", "--module"})
# Frameworks whose own Python programs launch them; no `smiles` of molecules.
OF_LAUNCHERS: Final = re.compile(r"(?<![A-Za-z])(?:slime|miles)(?![a-z])")
# What starts another script, and how such a script's file ends.
STARTERS: Final = frozenset(
    {"exec", "bash", "sh", "sbatch", "srun", "nohup", "env", "source", ".", "--", "time", "sudo"}
)
SCRIPTS: Final = (".sh", ".slurm", ".sbatch", ".bash")
# The module by which launchers of a framework are told (slime/utils/external_utils/command_utils.py).
UTILITIES: Final = "external_utils"
# How many scripts beside a program are looked into.
MOST_SCRIPTS: Final = 50


def is_quoted(word: str) -> bool:
    """Return whether a word is a command, or several, in quotes."""
    text = word.strip()
    gives = OVERRIDE.match(text) and not _VARIABLE.match(text)
    if gives or text.startswith(("{", "[")):
        return False
    return any(sign in text for sign in " \n\t") and _QUOTED.search(text) is not None


def scripts_that_start(program: Path) -> tuple[str, ...]:
    """Return the scripts beside a Python program, or in a folder below or above it, that name it: by their paths."""
    if program.suffix != ".py" or not program.is_file():
        return ()
    named = re.compile(rf"(?<![\w.-]){re.escape(program.name)}(?![\w.-])")
    folders = (program.parent, program.parent / "scripts", program.resolve().parent.parent)
    files = (each for folder in folders if folder.is_dir() for each in sorted(folder.iterdir()))
    found = [each for each in files if each.suffix in SCRIPTS and each.is_file()][:MOST_SCRIPTS]
    told = (str(each) for each in found if named.search(_text_of(each)))
    return tuple(dict.fromkeys(told))


def _text_of(script: Path) -> str:
    """Return a script's commands, without comments; nothing of one that cannot be read, or is too large."""
    try:
        if script.stat().st_size > MOST_BYTES:
            return ""
        lines = text_of(script, "replace").splitlines()
    except OSError:
        return ""
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))


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


def lost_below(commands: Sequence[Command], place: int, path: Path, text: str) -> Lost | None:
    """Return what stands below the end of a command, and is no part of it.

    Args:
        text: The script's.
    """
    first, words = lost_words(commands, place)
    if not words:
        return None
    ends = _end_above(text.splitlines(), first)
    return Lost(words=words, where=f"{path}:{first}", ends=ends, line=commands[place].line)


def _end_above(lines: Sequence[str], first: int) -> str:
    """Return the line that ends a command above words which are no part of it, and what ends it there."""
    for number in range(first - 1, 0, -1):
        text = lines[number - 1].strip() if number <= len(lines) else ""
        if text.startswith("#"):
            return f"{number}, a comment"
        if not text:
            return f"{number}, which is empty"
        if text.endswith("\\"):
            return f"{number}, where a space stands behind the backslash"
        if re.search(r"\\\s+#", text):
            return f"{number}, where a comment stands behind the backslash"
        break
    return str(first - 1)


def started_script(words: Sequence[Text], folder: Path) -> tuple[Path | None, list[Text]]:
    """Return the script that a command starts, if its file can be found, and the arguments it is given.

    The file is searched at its path, in the folder that `ray job submit` takes along, beside the script that starts it (if its folder
    is not known), in the folders above (paths from a repository's root), and nearby by the end of its path (absolute paths of
    another machine).
    """
    taken = [folder / each for each in _folders_of_a_job(words)]
    for place, word in enumerate(words):
        if not word.value.endswith(SCRIPTS):
            continue
        before = words[place - 1].value if place else ""
        if place and Path(before).name not in STARTERS and not re.match(r"-|\w+=", before):
            return None, []
        named = Path(word.value)
        higher = (each / named for each in above(folder)) if len(named.parts) > 1 else ()
        far = ends_near(named, folder, LEAST_END) if named.is_absolute() else ()
        along = (each / named for each in taken)
        places = (*along, named, folder / named, *higher, folder / named.name, *far)
        at_hand = (each for each in places if each.is_file())
        return next(at_hand, None), list(words[place + 1 :])
    return None, []


def _folders_of_a_job(words: Sequence[Text]) -> Iterator[str]:
    """Yield the folder in which `ray job submit` starts a command, where it says one (`--working-dir`)."""
    for word, behind in pairwise((*words, Text(""))):
        name, joint, value = word.value.partition("=")
        if name == "--working-dir" and (value or behind.value):
            yield value if joint else behind.value


def file_of(name: str, folder: Path) -> Path | None:
    """Return the file of a Python module or script; None where it is not at hand.

    A path of another machine is looked for by its end: of several parts, else by its name beside what starts it and above.
    """
    path = Path(name if name.endswith(".py") else f"{name.replace('.', '/')}.py")
    bases = (Path(), folder, *above(folder))
    places = (
        *(base / path for base in bases),
        *ends_near(path, folder, LEAST_END),
        folder / path.name,
        *(each / path.name for each in above(folder) if path.is_absolute()),
    )
    return next((each for each in places if each.is_file()), None)


def notes_of_place(name: str, found: Path | None) -> Iterator[str]:
    """Yield a note where the path of a program on another machine is taken to be one at hand."""
    if found is not None and Path(name).is_absolute() and Path(name) != found:
        yield f"{name} is not at hand: {found} is taken to be it"


def programs_of(words: Sequence[Text]) -> Iterator[tuple[str, tuple[Text, ...]]]:
    """Yield the Python modules and scripts that a command starts, each with what stands behind it."""
    has_python = False
    for place, word in enumerate(words):
        has_python = has_python or _PYTHON.fullmatch(word.value) is not None
        before = words[place - 1].value if place else ""
        named = re.fullmatch(r"[\w.\-]+", word.value) is not None
        is_module = named and before in OF_MODULES
        is_script = word.value.endswith(".py") and "=" not in word.value and before != "-c"
        if is_module or (is_script and (has_python or place == 0 or before == "run")):
            yield word.value, tuple(words[place + 1 :])


def refuse_unknown_program(words: Sequence[Text], launchers: Sequence[str], title: str) -> None:
    """Refuse a launcher's command line whose program is not known: what stands behind that may mean anything to it.

    Raises:
        FileError: It is not at hand, or starts nothing that is known.
    """
    name = next((name for name, _ in programs_of(words)), None)
    if name is None or Path(words[0].value).name not in launchers:
        return
    held = "starts no RL training" if file_of(name, Path()) is not None else "is not at hand"
    raise FileError(
        "the command line",
        f"its program {held}",
        value=name,
        allowed=f"--as {name}, to take it for {title}'s start",
    )


def started_launcher(words: Sequence[Text], folder: Path) -> tuple[Path | None, list[Text]]:
    """Return the Python program that a command starts which hands a training to a shell itself, and its arguments."""
    for name, arguments in programs_of(words):
        program = file_of(name, folder)
        if program is not None and is_launcher(program):
            return program, list(arguments)
    return None, []


def is_launcher_of(path: Path, framework: str) -> bool:
    """Tell whether a program is a launcher of a framework's: by the module that it imports, else by the sources beside it."""
    if not is_launcher(path):
        return False
    text = _text_of(path)
    if f".utils.{UTILITIES}" in text:
        return f"{framework}.utils.{UTILITIES}" in text
    sources = Path(framework, "utils", "arguments.py")
    return any((each / sources).is_file() for each in (path.parent, *above(path.parent)))


def launched_as_script(
    path: Path,
    arguments: Sequence[Text],
    environment: Mapping[str, str | Text],
    probes: Mapping[str, bool],
    wanted: Callable[[Command], bool],
) -> Evaluated:
    """Return what a Python program would do that hands a training to a shell, as of a script.

    Args:
        arguments: Its options.
        environment: Variables that are set before it starts.
        probes: Whether a command succeeds that has such words in it.
        wanted: Whether a command is what the program is read for.

    Raises:
        FileError: It cannot be followed, or hands on nothing that starts a training.
    """
    texts = {
        name: each if isinstance(each, Text) else Text(each) for name, each in environment.items()
    }
    given = {name: text.value for name, text in texts.items() if not text.gaps}
    is_own = STARTS in (text := _text_of(path)) or OF_LAUNCHERS.search(text) is not None
    read = launched_by if is_own else handed_by
    launched = read(path, [each.value for each in arguments], given)
    variables = {**environment, **launched.variables}
    found = evaluate(launched.text, (), variables, probes, wanted, path)
    found.gaps += launched.gaps
    if launched.options:
        found.notes = (OWN_DEFAULTS.format(path.name, launched.options),)
    return found


def assigned(word: Text) -> Iterator[tuple[str, Text]]:
    """Yield a variable that a word sets, as those of `env` do."""
    name, equals, value = word.value.partition("=")
    if equals and name.isidentifier():
        yield name, word.with_value(value)
