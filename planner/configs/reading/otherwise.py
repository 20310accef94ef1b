"""What a script trains otherwise than with RL, where it starts none of the trainings that are read."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rlplan.planner.configs.reading.configuration import PROGRAMS, plain_words, refusal_of
from rlplan.planner.configs.reading.literals import refused_call
from rlplan.planner.configs.reading.sheet import load_config_sheet


def trained_otherwise(framework: str, words: Sequence[str]) -> str | None:
    """Return what else than training with RL a script, a program or a command line starts of a framework's.

    None where that is not known; what only this framework's own programs of such a name do counts where it is named.
    """
    sheet = load_config_sheet(framework)
    path = Path(words[0])
    if path.suffix in PROGRAMS and path.is_file():
        return refused_call(sheet.launch, path)
    plain = [word.value for word in plain_words(words)]
    named = any(framework in word.lower() for word in plain)
    told = filter(None, map(partial(refusal_of, sheet), plain))
    return next((what for what in told if named or sheet.title not in what), None)
