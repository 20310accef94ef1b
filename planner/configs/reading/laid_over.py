"""Settings with the values that more words of a command line give."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rlplan.planner.configs.reading.launched import with_files, without_file
from rlplan.planner.configs.reading.python.arguments import arguments_of
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.reading.toml_files import with_flags
from rlplan.planner.configs.shell.text import Text


def laid_over(settings: Settings, words: Iterable[str]) -> Settings:
    """Return settings with the values that more words of their command line would give; nothing of them is used yet."""
    sheet, folder = settings.sheet, Path(settings.file).parent
    more = arguments_of(sheet, [Text(word) for word in words], settings.file)
    flat = settings.flat
    files = more.keys() & sheet.launch.files.keys()
    for key in files:
        flat = without_file(sheet, flat, key, folder)
    flat = with_flags(flat, more) if sheet.arguments == "toml" else {**flat, **more}
    return replace(settings, flat=with_files(sheet, flat, folder)[0] if files else flat, used=set())
