"""Keys that a framework's sheet does not know: misspelt ones, and those that somebody's copy of it has beside its own."""

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase

from rlplan.errors import nearest_name
from rlplan.planner.configs.reading.settings import Settings, fits_any
from rlplan.planner.configs.reading.sheet import ConfigSheet, spelled


def known_keys(sheet: ConfigSheet) -> set[str]:
    """Return all keys that a sheet knows, patterns among them."""
    known = {key for each in sheet.every_setting() for key in (*each.keys, *each.over)}
    for section in (sheet.harmless(), sheet.not_modelled, sheet.changes_work):
        known |= {name for key in section for name in spelled(key, sheet.roles)}
    return known


def unknown_keys(settings: Settings) -> Iterator[str]:
    """Yield the dotted keys of a configuration that its sheet does not know."""
    known = known_keys(settings.sheet)
    patterns = [key for key in known if "*" in key]
    for key in settings.flat:
        is_key = "." in key and not key.startswith("-") and ": " not in key
        if is_key and key not in known and not fits_any(key, patterns):
            yield key


def nearest_key(key: str, known: Collection[str]) -> str | None:
    """Return the known key that a misspelt one may mean; None where none is near.

    It has another last part beside the same ones before it, or the same last part behind others.
    """
    parent, _, last = key.rpartition(".")
    beside = {each.rpartition(".")[2]: each for each in known if each.rpartition(".")[0] == parent}
    near = nearest_name(last, beside)
    if near is not None and _is_alike(near, last):
        return beside[near]
    elsewhere = [each for each in known if each.rpartition(".")[2] == last]
    return nearest_name(key, elsewhere) or (min(elsewhere) if len(elsewhere) == 1 else None)


def _is_alike(known: str, given: str) -> bool:
    """Tell whether two names differ by little: `micro_batch` is not `batch`, `ulyses_size` is `ulysses_size`."""
    shorter, longer = sorted((known, given), key=len)
    return len(longer) - len(shorter) <= max(2, len(longer) // 5) and known[0] == given[0]


def keys_of_a_copy(settings: Settings) -> tuple[str, ...]:
    """Return keys by which a configuration is of somebody's copy: its framework stops at them, and they are no slips.

    Nothing of a framework that takes keys which it does not know.
    """
    if not settings.sheet.refuses_unknown:
        return ()
    known = known_keys(settings.sheet)
    return tuple(key for key in unknown_keys(settings) if nearest_key(key, known) is None)


def older_keys(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield keys that the configuration's version has no more, each with the last version that had it."""
    sheet = settings.sheet
    place = sheet.versions.index(sheet.version) if sheet.version in sheet.versions else -1
    for each in sheet.ranges:
        if each.until is None or each.lacks or sheet.versions.index(each.until) >= place >= 0:
            continue
        names = [name for key in each.keys for name in spelled(key, sheet.roles)]
        yield from (
            (key, each.until)
            for key in settings.flat
            if any(fnmatchcase(key, name) for name in names)
        )
