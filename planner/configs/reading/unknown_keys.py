"""Keys that a framework's sheet does not know: misspelt ones, and those that somebody's copy of it has beside its own."""

from collections.abc import Collection, Iterator
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from typing import Final

from rlplan.planner.configs.reading.settings import Settings, fits_any
from rlplan.planner.configs.reading.sheet import spelled

# Names that are alike to this share differ by a slip: `ulyses_size` and `ulysses_size`, not `max_input` and `max_prompt`.
ALIKE: Final = 0.9


def unknown_keys(settings: Settings) -> Iterator[str]:
    """Yield the dotted keys of a configuration that its sheet does not know."""
    known = set(settings.sheet.every_key())
    patterns = [key for key in known if "*" in key]
    for key in settings.flat:
        is_key = "." in key and not key.startswith("-") and ": " not in key
        if is_key and key not in known and not fits_any(key, patterns):
            yield key


def nearest_key(key: str, known: Collection[str]) -> str | None:
    """Return the known key that a misspelt one may mean; None where none is near.

    Its last part, or what stands before that, differs by a slip; or what stands before that is not whole.
    """
    parent, _, last = key.rpartition(".")
    near = [each for each in known if _is_slip(key, each, parent, last)]
    return max(sorted(near), key=lambda each: _likeness(key, each)) if near else None


def _is_slip(key: str, known: str, parent: str, last: str) -> bool:
    known_parent, _, known_last = known.rpartition(".")
    if parent == known_parent:
        return _likeness(last, known_last) >= ALIKE
    if last != known_last:
        return False
    return known.endswith(f".{key}") or _likeness(parent, known_parent) >= ALIKE


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def keys_of_a_copy(settings: Settings) -> tuple[str, ...]:
    """Return keys by which a configuration is of somebody's copy: its framework stops at them, and they are no slips.

    Nothing of a framework that takes keys which it does not know.
    """
    if not settings.sheet.refuses_unknown:
        return ()
    known = set(settings.sheet.every_key())
    return tuple(key for key in unknown_keys(settings) if nearest_key(key, known) is None)


def older_keys(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield keys that the configuration's version has no more, each with the last version that had it.

    Between two releases there are checkouts that have some keys of either: those of the release before are left out.
    """
    sheet = settings.sheet
    if sheet.version not in sheet.versions:
        return
    place = sheet.versions.index(sheet.version)
    for each in sheet.ranges:
        if each.until is None or each.lacks or sheet.versions.index(each.until) + 1 >= place:
            continue
        names = [name for key in each.keys for name in spelled(key, sheet.roles)]
        yield from (
            (key, each.until)
            for key in settings.flat
            if any(fnmatchcase(key, name) for name in names)
        )
