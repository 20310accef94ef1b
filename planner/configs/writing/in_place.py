"""One key's value in a script's text, and what the text says then where the script stands."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from rlplan.errors import UserError
from rlplan.planner.configs.proposing.changes import Assignment, typed_value
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.reading.toml_files import NOTHING
from rlplan.planner.configs.writing.texts import texts_with

# Folders above a script, and files in each, that stand beside its new text while that is read: what it sources or builds on.
FOLDERS_ABOVE, MOST_FILES = 4, 2000


def says(settings: Settings, assignment: Assignment) -> bool:
    """Tell whether a key has a value; of a switch that no word turns off, off is that it is not there."""
    key, value = assignment
    given = settings.given(key)
    if given is None:
        if key in settings.flat and value == NOTHING[0]:
            return True
        sheet = settings.sheet
        return value is False and sheet.arguments == "flags" and not sheet.valued_switches
    return typed_value(given) == typed_value(value)


@contextmanager
def place_of(script: Path) -> Iterator[Path]:
    """Yield a file in whose place a script's text is read as in its own: what stands beside and above that is linked there."""
    own = script.absolute()
    chain = [*reversed(own.parents[:FOLDERS_ABOVE]), own]
    with TemporaryDirectory() as made:
        place = Path(made)
        for folder, inner in pairwise(chain):
            with suppress(OSError):  # a folder that may not be listed
                for each in islice(folder.iterdir(), MOST_FILES):
                    if each.name != inner.name:
                        (place / each.name).symlink_to(each)
            place /= inner.name
            if inner != own:
                place.mkdir()
        yield place


def text_with(
    text: str,
    script: Path,
    settings: Settings,
    assignment: Assignment,
    read: Callable[[str], Settings],
) -> tuple[str, Settings] | None:
    """Return a script's text with one key's value, and what it says then: no other keys, and if it can be all else as before.

    None where its text has no place for it.

    Args:
        read: Returns what a text says where the script stands.
    """
    follows = None
    for new in texts_with(text, script, settings, assignment):
        try:
            found = read(new)
        except UserError:
            continue
        if not says(found, assignment) or not _has_all(found, settings, assignment[0]):
            continue
        if not followers(found, settings, assignment[0]):
            return new, found
        follows = follows or (new, found)
    return follows


def _has_all(found: Settings, before: Settings, key: str) -> bool:
    """Tell whether settings have the keys that they had before and one more.

    An empty mapping is none once it holds that, and a key that has a value has no mapping.
    """
    kept = (name for name in before.flat if not name.startswith(f"{key}."))
    others = {name for name in kept if name != key and not key.startswith(f"{name}.")}
    return others == {name for name in found.flat if name != key}


def followers(found: Settings, before: Settings, key: str) -> tuple[str, ...]:
    """Return the other keys that have other values than before: a YAML file may make them of the key."""
    return tuple(
        name
        for name, each in found.flat.items()
        if name != key and each.value != before.given(name)
    )
