"""What a script trains otherwise than with RL, where it starts none of the trainings that are read."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rlplan.planner.configs.reading.configuration import PROGRAMS, refusal_of
from rlplan.planner.configs.reading.launched import words_that_start
from rlplan.planner.configs.reading.python.literals import refused_call
from rlplan.planner.configs.reading.scripts import SCRIPTS, programs_of
from rlplan.planner.configs.reading.sheet import ConfigSheet, load_config_sheet
from rlplan.planner.configs.reading.telling import plain_words
from rlplan.planner.configs.shell.text import Text

# What reads another script into its own shell, which starts no training for that.
READS: Final = frozenset({"source", "."})
# Behind it a script says how it is called itself.
USAGE: Final = "usage:"


def trained_otherwise(framework: str, words: Sequence[str]) -> str | None:
    """Return what of a framework a script, program or command line starts that is not RL training, in words.

    None where that is not known, for example because the script also starts a program that may be RL training. A
    program that only this framework has counts only if the words name the framework.
    """
    sheet = load_config_sheet(framework)
    path = Path(words[0])
    if path.suffix in PROGRAMS and path.is_file():
        return refused_call(sheet.launch, path)
    plain = plain_words(words)
    if any(refusal_of(sheet, name) is None for name in _started(plain)):
        return None
    named = any(framework in word.value.lower() for word in plain)
    told = (_refusal_at(sheet, plain, place) for place in range(len(plain)))
    known = (what for what in told if what is not None)
    return next((what for what in known if named or sheet.title not in what), None)


def _started(words: Sequence[Text]) -> Iterator[str]:
    """Yield the Python programs, and the other scripts, that words start."""
    yield from (name for name, _ in programs_of(words))
    for before, word in zip(("", *(word.value for word in words)), words, strict=False):
        if word.value.endswith(SCRIPTS) and before not in READS and before.lower() != USAGE:
            yield word.value


def _refusal_at(sheet: ConfigSheet, words: Sequence[Text], place: int) -> str | None:
    """Return what a word is refused for; a bare one, as `sft`, where it is the command of the framework's own program."""
    word = words[place].value
    what = refusal_of(sheet, word)
    if what is None or not word.isidentifier():
        return what
    programs = {start.rpartition(" ")[0] for start in sheet.starts} - {""}
    commands = (f"{program} {word}" for program in programs)
    ends = (words_that_start([each], words, place - each.count(" ")) for each in commands)
    return what if any(ends) else None
