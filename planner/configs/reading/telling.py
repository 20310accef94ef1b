"""Which framework's training a script, a program or a command line starts: by what it calls, hands on or names."""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from rlplan.planner.configs.reading.configuration import (
    PROGRAMS,
    PYTHON,
    TELLING,
    script_text,
    start_of,
    telling_keys,
)
from rlplan.planner.configs.reading.launched import words_that_start
from rlplan.planner.configs.reading.python.handing import commands_handed_by
from rlplan.planner.configs.reading.python.literals import program_that_starts
from rlplan.planner.configs.reading.scripts import (
    SCRIPTS,
    file_of,
    is_launcher_of,
    programs_of,
    started_script,
)
from rlplan.planner.configs.reading.settings import fits_any
from rlplan.planner.configs.reading.sheet import ConfigSheet, load_config_sheet
from rlplan.planner.configs.reading.toml_files import is_toml, part_keys
from rlplan.planner.configs.shell.text import Text

_VARIABLE: Final = re.compile(r"\$\{?\w+\}?")
# A program in a word with variables, without the folder that one of them has: `${PROGRAM:-$ROOT/train.py}`.
_PROGRAM: Final = re.compile(r"\w[\w./\-]*\.py\b")


def starts_of(framework: str, words: Iterable[str]) -> bool:
    """Tell whether a script's text, or a command line, names what starts a framework's training."""
    sheet, given = load_config_sheet(framework), list(words)
    path = Path(given[0])
    if path.suffix in PROGRAMS and path.is_file():
        if is_launcher_of(path, framework) or program_that_starts(sheet.launch, path) is not None:
            return True
        return _hands_start(sheet, path, given[1:])
    if is_toml(path) and path.is_file():
        of_toml = part_keys(sheet, given[:1], given[0]) if sheet.arguments == "toml" else {}
        return any(fits_any(key, sheet.start_keys) for key in of_toml)
    plain = plain_words(given)
    telling = len(telling_keys(sheet, plain))
    if telling >= TELLING or _names_start(sheet, plain, telling=bool(telling)):
        return True
    return path.suffix in SCRIPTS and path.is_file() and _starts_program(sheet, path, plain)


def _starts_program(sheet: ConfigSheet, path: Path, words: Sequence[Text]) -> bool:
    """Tell whether a script names a program at hand that calls what starts a framework's training."""
    if not sheet.launch.starts:
        return False
    named = [name for name, _ in programs_of(words)]
    named += [
        each
        for word in words
        if "$" in word.value
        for each in _PROGRAM.findall(_VARIABLE.sub("", word.value))
    ]
    files = (file_of(name, path.parent) for name in dict.fromkeys(named))
    return any(
        each is not None and program_that_starts(sheet.launch, each) is not None for each in files
    )


def _hands_start(sheet: ConfigSheet, path: Path, words: Sequence[str]) -> bool:
    """Tell whether a program hands a command to a shell that starts a framework's training, itself or by a script."""
    for line in commands_handed_by(path, tuple(words)).splitlines():
        plain = _plain(line.split())
        if plain and start_of(sheet, plain, folder=path.parent) is not None:
            return True
        script, _ = started_script(plain, path.parent)
        if script is not None and starts_of(sheet.name, [str(script)]):
            return True
    return False


def names_start(framework: str, words: Iterable[str]) -> bool:
    """Tell whether a script's text, or a command line, has a start of a framework's, not only keys that others have too."""
    sheet, plain = load_config_sheet(framework), plain_words(list(words))
    return _names_start(sheet, plain, telling=bool(telling_keys(sheet, plain)))


def _names_start(sheet: ConfigSheet, words: Sequence[Text], *, telling: bool) -> bool:
    names = (*sheet.starts, *(sheet.plain_starts if telling else ()))
    return any(words_that_start(names, words, place) for place in range(len(words))) or any(
        fnmatchcase(name.lstrip("*/"), written)
        for written in map(_pattern_of, words)
        for name in names
        if written
    )


def _pattern_of(word: Text) -> str:
    """Return a pattern of the programs that a word may name in which a variable stands, as `src/open_r1/$TASK.py`; else empty."""
    path = Path(word.value)
    named = (
        path.suffix == PYTHON
        and "$" in path.name
        and path.parent.name
        and "$" not in path.parent.name
    )
    return f"{path.parent.name}/{_VARIABLE.sub('*', path.name)}" if named else ""


def plain_words(words: Sequence[str]) -> list[Text]:
    """Return the words of a script's text, or of a command line, without quotes."""
    return _plain(_texts(words))


def _plain(words: Sequence[str]) -> list[Text]:
    return [Text(word.strip("\"'")) for word in words]


def most_named(frameworks: Sequence[str], words: Iterable[str]) -> Sequence[str]:
    """Return, of frameworks whose commands are alike, those that a script or command line names most often."""
    given = list(words)
    text = " ".join([*given, *_texts(given)]).lower()
    counts = {name: len(re.findall(rf"(?<![a-z]){name}(?![a-z])", text)) for name in frameworks}
    return [name for name in frameworks if counts[name] == max(counts.values())]


def _texts(words: Sequence[str]) -> Sequence[str]:
    """Return the words of a script's text, or of a command line."""
    return script_text(Path(words[0])).split() if Path(words[0]).is_file() else words
