"""Defaults of a checkout at hand: what its own configuration has otherwise than the release that it counts as.

Forks change the values in the framework's own files, and checkouts between two releases have those of neither. A script
leaves out what these files say.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final, cast

from rlplan.files.frozen import FrozenDict
from rlplan.planner.configs.reading.composed import INHERITS, defaults_of
from rlplan.planner.configs.reading.given import Flat, GivenValue
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.reading.sheet import ConfigSheet, Scalar, Setting, spelled
from rlplan.planner.configs.reading.version_files import text_beside

# Names the setting that says which of the framework's own configurations stands beneath all.
CONFIG: Final = "config"
FLAG: Final = "--config-name"
ANY_FOLDER: Final = "*/"


def own_defaults(settings: Settings, checkouts: Iterable[Path]) -> tuple[Path | None, Flat]:
    """Return the nearest checkout at hand, and what the framework's own configuration says in it, by key; nothing where there is none.

    Args:
        checkouts: Folders in which the framework may lie, the nearest first.
    """
    sheet = settings.sheet
    if CONFIG not in sheet.settings or not sheet.own_folders:
        coded = sheet.told_by_code
        found = (each for each in checkouts if any((each / name).is_file() for name in coded))
        return next(found, None), {}
    named = settings.flat.get(INHERITS) or settings.flat.get(FLAG)
    name = str(sheet.settings[CONFIG].default if named is None else named.value)
    places = [each.removeprefix(ANY_FOLDER) for each in sheet.own_folders if each[-1] != "*"]
    for checkout, place in product(checkouts, places):
        if (checkout / place).is_dir():
            return checkout, defaults_of(sheet, name, checkout / place, settings.flat)
    return None, {}


def told_by_code(sheet: ConfigSheet, checkout: Path) -> Flat:
    """Return what a checkout's code says of keys whatever its configuration says."""
    found: Flat = {}
    for name, marks in sheet.told_by_code.items():
        file = checkout / name
        text = text_beside(file)
        for mark in (each for each in marks if each in text):
            found |= {k: GivenValue(value=v, where=f"{file}:1") for k, v in marks[mark].items()}
    return found


def take_own_defaults(settings: Settings, own: Flat) -> None:
    """Let settings have the defaults of a checkout's own configuration, and say which differ from the release's."""
    sheet = settings.sheet
    settings.sheet, taken = _with_defaults(sheet, own) if own else (sheet, [])
    unsaid = [key for key in taken if key not in settings.flat]
    if unsaid:
        said = ", ".join(f"{key}={own[key].value}" for key in unsaid)
        where = own[unsaid[0]].where.rpartition("/")[0]
        note = f"defaults of the checkout where others are known of {sheet.title} {sheet.version}: {said} ({where})"
        settings.notes += (note,)


def _with_defaults(
    sheet: ConfigSheet, own: Mapping[str, GivenValue]
) -> tuple[ConfigSheet, list[str]]:
    """Return a sheet with defaults that files have, and the keys of those that differ."""
    taken: list[str] = []
    settings = {
        name: each if name in sheet.kept_defaults else _of_all(each, sheet, own, taken)
        for name, each in sheet.settings.items()
    }
    losses = {name: _of_all(each, sheet, own, taken) for name, each in sheet.losses.items()}
    trainers = {
        name: replace(
            trainer,
            sizes=FrozenDict(
                {
                    size: each
                    if size in sheet.kept_defaults
                    else _of_roles(each, sheet, own, taken)
                    for size, each in trainer.sizes.items()
                }
            ),
        )
        for name, trainer in sheet.trainers.items()
    }
    changed = replace(
        sheet,
        settings=FrozenDict(settings),
        losses=FrozenDict(losses),
        trainers=FrozenDict(trainers),
    )
    return changed, list(dict.fromkeys(taken))


def _of_all(
    setting: Setting, sheet: ConfigSheet, own: Mapping[str, GivenValue], taken: list[str]
) -> Setting:
    """Return a setting with the default that files have of the first of its keys."""
    key = next((each for each in setting.keys if each in own), None)
    if key is None or not _differs(setting, _usual(setting, sheet, key), own[key].value):
        return setting
    taken.append(key)
    return replace(setting, default=cast(Scalar, own[key].value), follows=None)


def _of_roles(
    setting: Setting, sheet: ConfigSheet, own: Mapping[str, GivenValue], taken: list[str]
) -> Setting:
    """Return a size with the defaults that files have of each role's key."""
    usual = dict(setting.of_roles)
    for role, prefix in sheet.roles.items():
        if role in sheet.role_follows:
            continue
        keys = (name for key in setting.keys for name in spelled(key, {role: prefix}))
        key = next((each for each in keys if each in own), None)
        said = None if key is None else usual.get(role, _usual(setting, sheet, key))
        if key is not None and _differs(setting, said, own[key].value):
            taken.append(key)
            usual[role] = cast(Scalar, own[key].value)
    return replace(setting, of_roles=FrozenDict(usual))


def _usual(setting: Setting, sheet: ConfigSheet, key: str) -> object:
    """Return the sheet's default of a setting; where it has none, that of what it follows, or what a key's usual value is."""
    if setting.default is None and setting.follows is not None:
        return sheet.settings[setting.follows].default
    usual = sheet.usual.get(key) if setting.default is None else setting.default
    return usual[0] if isinstance(usual, tuple) else usual


def _differs(setting: Setting, usual: object, found: object) -> bool:
    """Tell whether a file's default means something else than the sheet's; what the sheet has no word for does not."""
    if setting.values:
        words = setting.values
        meant = words.get(str(usual), usual)
        return str(found) in words and words[str(found)] != meant
    return found != usual
