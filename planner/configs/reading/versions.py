"""Which version of its framework a configuration is of: as somebody says, as files say, or by its keys."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain, product
from pathlib import Path
from typing import Final

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.planner.configs.reading.configuration import script_text
from rlplan.planner.configs.reading.given import NOT_THERE, Flat
from rlplan.planner.configs.reading.own_defaults import (
    own_defaults,
    take_own_defaults,
    told_by_code,
)
from rlplan.planner.configs.reading.settings import Settings, fits_any
from rlplan.planner.configs.reading.sheet import ConfigSheet, VersionRange, own_values, spelled
from rlplan.planner.configs.reading.version_files import (
    LIMIT,
    REQUIREMENTS,
    Hint,
    checkouts_near,
    engine_limits,
    folders_above,
    hints_of,
    hints_of_checkout,
    limited_in,
    text_beside,
)
from rlplan.rules.rule import listed

OPTION: Final = "--framework-version"
# Of the known versions, so many on either side may be those of a checkout between two.
FAR: Final = 2
# Of keys at which a version stops, so many are not of a script's own classes.
LEAST_REFUSED: Final = 2
# Of them a reason names so many.
MOST_NAMED: Final = 4
OF_FILE: Final = re.compile(r"\.ya?ml:\d+$")
DEVELOPED: Final = re.compile(r"dev\d*$")
COMMENT: Final = re.compile(r"(?:^|\s)#.*$")
PRINTS: Final = frozenset({"echo", "printf"})
UNSETS: Final = "unset"
NUMBER: Final = re.compile(r"v?(\d+(?:\.\d+)+)(?:\.?(?:dev|post|rc)\d*)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """Hold what lies beside a script, looked for once.

    Attributes:
        near: Of the script, and of the file that holds its configuration, where a checkout may lie, by folder.
        checkout: The nearest one that has a configuration of the framework's own; None where there is none.
        own: What that says, by key.
    """

    script: Path
    near: Mapping[Path, Mapping[Path, Sequence[Path]]]
    checkout: Path | None = None
    own: Flat = field(default_factory=dict)

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files that are there."""
        return tuple(file for file in self.near if file.is_file())

    @property
    def checkouts(self) -> tuple[Path, ...]:
        """Return where a checkout may lie beside these."""
        return tuple(each for file in self.files for each in chain(*self.near[file].values()))

    def marked(self, sheet: ConfigSheet) -> tuple[Path, ...]:
        """Return where a checkout may lie whose code tells its version; nowhere for a framework whose code does not."""
        return tuple(chain(*self.near[self.script].values())) if sheet.version_marks else ()


def is_newest(sheet: ConfigSheet, word: str) -> bool:
    """Tell whether a word names the newest version that is known, whose keys a sheet has."""
    return word == sheet.version or _known(sheet, word) == sheet.versions[-1]


def _wanted(sheet: ConfigSheet, word: str) -> str:
    """Return the known version that a word names: itself, the newest that begins so, or the one that a release in between is read as.

    Raises:
        FileError: None is known.
    """
    found = _known(sheet, word)
    if found is None and _is_between(sheet, word):
        found = _nearest(sheet, word)
    if found is None:
        allowed = ", ".join(sheet.versions)
        problem = f"is no version of {sheet.title} whose keys are known"
        raise FileError(OPTION, problem, value=word, allowed=allowed)
    return found


def _known(sheet: ConfigSheet, word: str) -> str | None:
    """Return the known version that a word names; None where none is."""
    known = sheet.versions
    if word == sheet.version:
        return known[-1]
    number = NUMBER.match(word.lower())
    if number is None:
        return word if word in known else None
    parts = number[1].split(".")
    whole = len(parts) > 2  # noqa: PLR2004 -- 0.8.0 is said whole, and is called 0.8
    if whole and parts[-1] == "0":
        del parts[-1]
    name = ".".join(parts)
    begins = (
        each
        for each in reversed(known)
        if each == name or (each.startswith(f"{name}.") and not whole)
    )
    return next(begins, None)


def _nearest(sheet: ConfigSheet, word: str) -> str | None:
    """Return the known version that a file's word names, or the newest before it, or the oldest; None of no number.

    Those of a package of another name (`train-0.3`) are known among themselves.
    """
    found = _known(sheet, word)
    before = next((each for each in sheet.packages.values() if word.startswith(each)), "")
    if before:
        among = [each.removeprefix(before) for each in sheet.versions if each.startswith(before)]
        inner = replace(sheet, version=among[-1], versions=tuple(among), packages=FrozenDict())
        near = None if found is not None else _nearest(inner, word.removeprefix(before))
        return found if near is None else before + near
    number = NUMBER.match(word.lower())
    if found is not None or number is None:
        return found
    earlier = [each for each in sheet.versions if _parts(each) <= _parts(number[1])]
    comparable = all(NUMBER.match(each) for each in sheet.versions)
    return (earlier or sheet.versions)[-1 if earlier else 0] if comparable else None


def _is_between(sheet: ConfigSheet, word: str) -> bool:
    """Tell whether a word is the number of a release from the oldest known version on up to the newest."""
    number = NUMBER.match(word.lower())
    ends = sheet.versions[0], sheet.versions[-1]
    if number is None or not all(map(NUMBER.match, ends)):
        return False
    first, last = map(_parts, ends)
    return first <= _parts(number[1]) and _parts(number[1])[: len(last)] <= last


def set_version(settings: Settings, wanted: str | None, script: Path) -> None:
    """Let settings mean what they did in their configuration's version, and say which that is, and why.

    Args:
        script: What was named; another that it starts may hold the configuration.
        wanted: What somebody says that it is; None looks for it.

    Raises:
        FileError: The wanted one is not known.
    """
    sheet = settings.sheet
    if wanted is not None:
        settings.sheet = sheet.of(_wanted(sheet, wanted))
        said = "" if _known(sheet, wanted) else f" {wanted}"
        settings.version_reason = f"as {OPTION}{said} says"
    elif settings.copied:
        version, settings.version_reason = settings.copied
        settings.sheet = sheet.of(version)
    if (wanted or not settings.copied) and (sheet.images or sheet.ranges or sheet.version_files):
        files = dict.fromkeys((script, Path(settings.file)))
        beside = _Beside(script=script, near={file: checkouts_near(sheet, file) for file in files})
        checkout, own = own_defaults(settings, beside.checkouts)
        if wanted is not None:
            is_said = _says_only(sheet, wanted, checkout)
            is_of_it = is_said or _is_inside(script, checkout)
            if is_of_it and not is_said:
                settings.version_reason += f", over the defaults of {checkout}, which says another"
        else:
            is_of_it = _find_version(settings, replace(beside, checkout=checkout, own=own))
        if is_of_it and checkout is not None:
            take_own_defaults(settings, {**told_by_code(sheet, checkout), **own})
    _switch_engine(settings, script)
    _restate(settings)


def _switch_engine(settings: Settings, script: Path) -> None:
    """Let a script's words that stand for another engine of that version mean it, and say which line asks for it."""
    for asked, switches in settings.sheet.engine_switches.items():
        name, _, wanted = asked.partition("=")
        setting = settings.sheet.settings["rollout_engine"]
        values = {word: switches.get(str(each), each) for word, each in setting.values.items()}
        if values == setting.values:
            continue
        for file in dict.fromkeys((script, Path(settings.file))):
            played = settings.played.get(str(file))
            said = (each for each in _assigned(name, file) if played is None or each[0] in played)
            last = next(reversed(list(said)), None)
            if last is None or last[1] != wanted:
                continue
            items = settings.sheet.settings.with_item(
                "rollout_engine", replace(setting, values=FrozenDict(values))
            )
            settings.sheet = replace(settings.sheet, settings=items)
            settings.switched = f"{asked} ({file}:{last[0]})"
            return


def _assigned(name: str, file: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines in which a script's text sets an environment variable, from 1, and to what: by `=`, or by `:` in a mapping.

    What is printed, and comments, set nothing. A variable that is unset is set to nothing.
    """
    sets = re.compile(
        rf"""(?<![\w$])(?<!\$\{{){name}["']?\]?\s?[=:]\s*["']?(?:\$\{{{name}:?-)?(?P<value>[^\s"';&|,}})]*)"""
    )
    for number, line in enumerate(script_text(file).splitlines() if file.is_file() else [], 1):
        words = COMMENT.sub("", line).split()
        if words[:1] == [UNSETS] and name in words:
            yield number, ""
        elif words and words[0] not in PRINTS | {UNSETS}:
            yield from ((number, found["value"]) for found in sets.finditer(" ".join(words)))


def _restate(settings: Settings) -> None:
    """Let values that stand for a file which is not at hand be those of the configuration's version."""
    for key, given in list(settings.flat.items()):
        if not given.where.endswith(NOT_THERE):
            continue
        values = own_values(settings.sheet, given.where.removesuffix(NOT_THERE))
        if key in values:
            settings.flat[key] = replace(given, value=values[key])
        else:
            del settings.flat[key]


def _find_version(settings: Settings, beside: _Beside) -> bool:
    """Take the version that files say, or else the one of which most keys are; return whether a checkout at hand is of it."""
    sheet, checkout, is_of_it = settings.sheet, beside.checkout, True
    hints = [hint for file in beside.files for hint in hints_of(sheet, file, beside.near[file])]
    against = ""
    for hint in hints:
        known = _nearest(sheet, hint.version) if hint.of == "version" else None
        if hint.of == "version" and hint.version in sheet.unsure_versions:
            settings.version_reason = (
                f'the newest that is known, since checkouts of it say "{hint.words}" as well '
                f"({hint.where}): {OPTION} says another"
            )
            break
        refused = () if known is None else _refused_keys(settings, known)
        if refused:
            more = len(refused) - MOST_NAMED
            named = listed(refused[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
            against = f'not by "{hint.words}" ({hint.where}), which stops at {named}: '
        elif known is not None:
            is_of_it = _is_inside(beside.script, checkout) or _speaks_of(
                sheet, hint, known, checkout
            )
            between = DEVELOPED.search(hint.version) is not None
            other = _before(settings, known) if between else None
            other = other or _behind(settings, known, beside.marked(sheet))
            if is_of_it:
                other = other or _by_own_keys(sheet, known, beside.own, between=between)
            settings.sheet = sheet.of(known if other is None else other[0])
            since = "" if other is None else f", {other[1]}"
            since += "" if is_of_it else f", and not that of {checkout}"
            settings.version_reason = f'by "{hint.words}" ({hint.where}){since}'
            break
    else:
        if against or not _by_code(settings, beside.marked(sheet)):
            _by_keys(settings, hints, beside.files)
        settings.version_reason = against + settings.version_reason
    engines = [hint for hint in hints if hint.of != "version"]
    limits = engine_limits(sheet, beside.checkouts) if is_of_it else ()
    weaker = [each for each in limits if all(each.of != hint.of for hint in engines)]
    for hint in reversed((*engines, *weaker)):
        settings.sheet = _with_engine(settings.sheet, hint)
    return is_of_it


def _is_inside(script: Path, checkout: Path | None) -> bool:
    """Tell whether a script lies in a checkout, which it then starts whatever image it was written for."""
    return checkout is not None and script.resolve().is_relative_to(checkout.resolve())


def _says_only(sheet: ConfigSheet, word: str, checkout: Path | None) -> bool:
    """Tell whether a checkout's own files say no other version than a word names (`0.7` names 0.7.0 too)."""
    known = _wanted(sheet, word)
    said = () if checkout is None else (each.version for each in hints_of_checkout(sheet, checkout))
    return all(f"{each}.".startswith(f"{word}.") or _nearest(sheet, each) == known for each in said)


def _speaks_of(sheet: ConfigSheet, hint: Hint, known: str, checkout: Path | None) -> bool:
    """Tell whether a hint's version is that of a checkout at hand: it says so itself, or the same elsewhere, or nothing.

    A script that installs one version may stand beside a copy of another.
    """
    own = [] if checkout is None else list(hints_of_checkout(sheet, checkout))
    return hint in own or all(_nearest(sheet, each.version) == known for each in own)


def _refused_keys(settings: Settings, known: str) -> tuple[str, ...]:
    """Return the given keys at which a version stops, where they are most of those that tell versions; none where fewer are.

    One alone may be of a script's own classes, and some of a checkout between two releases.
    """
    sheet = settings.sheet
    order, last, first = (
        sheet.versions.index,
        sheet.refused_later_until,
        sheet.refused_in_files_since,
    )
    stops = sheet.refuses_unknown or (last is not None and order(known) <= order(last))
    if not (stops or sheet.first_is_apart):
        return ()
    own, drops = replace(sheet, version=known), first is not None and order(known) < order(first)
    given = [
        (each.older or key, each.value)
        for key, each in settings.flat.items()
        if not (each.added or each.where.endswith(NOT_THERE))
        and not (drops and OF_FILE.search(each.where))
    ]
    telling = [each for each in given if _ranges_of(sheet, *each)]
    refused = tuple(
        key
        for key, value in telling
        if _is_absent(own, key, value) and (stops or _is_of_first(sheet, key, value))
    )
    most = 2 * len(refused) > len(telling)
    return refused if most and len(refused) >= LEAST_REFUSED else ()


def _before(settings: Settings, known: str) -> tuple[str, str] | None:
    """Return the version that a whole configuration of a checkout between two versions is of, and why; None for the later one.

    Such a file has keys of both, and one that it lacks tells that the checkout does not know that key yet.
    """
    order = settings.sheet.versions.index
    for each in settings.sheet.ranges:
        earlier = each.until is not None and order(each.until) < order(known)
        key = next(_keys_of(settings, each), None) if each.lacks and earlier else None
        if key is not None and each.until is not None:
            return each.until, _reason(settings, key, each)
    return None


def _behind(settings: Settings, known: str, checkouts: Sequence[Path]) -> tuple[str, str] | None:
    """Return the later version whose code a checkout has already that still says the earlier number, and why; None for what it says.

    It is of the earlier one where a configuration has keys that the later one has no more.
    """
    sheet = settings.sheet
    order = sheet.versions.index
    later = (each for each in reversed(sheet.versions) if order(each) > order(known))
    for version in later:
        then = replace(sheet, version=version)
        if any(
            _is_gone(then, each.older or key, each.value) for key, each in settings.flat.items()
        ):
            continue
        marked = next(_marked(sheet, version, checkouts), None)
        if marked is not None:
            return version, f"with {marked[0]} as from {version} on ({marked[1]})"
    return None


def _by_own_keys(
    sheet: ConfigSheet, known: str, own: Flat, *, between: bool
) -> tuple[str, str] | None:
    """Return the version near a checkout's number whose keys its own configuration has, and why; None where the number says it.

    Numbers of checkouts between two releases are of either: verl's 0.5.0.dev came after 0.5 and its 0.7.0.dev before 0.7.

    Args:
        between: Whether the number is that of such a checkout.
    """
    told = [versions for versions in sheet.ranges if _range_tells(sheet, versions, own)]
    place = sheet.versions.index(known)
    before, behind = (FAR, FAR) if between else (0, 1)
    lacks = {
        at: sum(not _holds(each, at, sheet) for each in told)
        for at in range(max(0, place - before), min(len(sheet.versions), place + behind + 1))
    }
    best = min(lacks, key=lambda at: (lacks[at], abs(at - place)))
    if best == place:
        return None
    files = (given.where.rpartition(":")[0] for given in own.values())
    where, version = min(files, key=len), sheet.versions[best]
    return version, f"whose own configuration has the keys of {version} ({where})"


def _range_tells(sheet: ConfigSheet, versions: VersionRange, own: Flat) -> bool:
    """Tell whether a range speaks of keys, or of their values, that a configuration has."""
    patterns = [name for each in versions.keys for name in spelled(each, sheet.roles)]
    return not (versions.usual or versions.lacks) and any(
        fits_any(key, patterns) and (not versions.values or given.value in versions.values)
        for key, given in own.items()
    )


def _marked(
    sheet: ConfigSheet, version: str, checkouts: Sequence[Path]
) -> Iterator[tuple[str, Path]]:
    """Yield the texts that only checkouts of a version or behind it have, each with the file that has it."""
    marks = sheet.version_marks.get(version, FrozenDict())
    for folder, (name, text) in product(checkouts, marks.items()):
        file = folder / name
        if file.is_file() and text in text_beside(file):
            yield text, file


def _by_code(settings: Settings, checkouts: Sequence[Path]) -> bool:
    """Take the newest version whose code a checkout has that says no number, and tell whether there is one."""
    sheet = settings.sheet
    for version in reversed(sheet.versions):
        for text, file in _marked(sheet, version, checkouts):
            settings.sheet = sheet.of(version)
            settings.version_reason = f"with {text} and no version's number ({file})"
            return True
    return False


def _by_keys(settings: Settings, hints: Sequence[Hint], files: Sequence[Path]) -> None:
    """Take the newest version that has most of the keys, of those that requirements leave and with an engine that files name."""
    sheet, reason = settings.sheet, ""
    started = _started(settings)
    left, limits = _left_by_requirements(sheet, files)
    candidates = tuple(each for each in started if each in left)
    if not candidates:  # what is started tells more than requirements beside it
        candidates, limits = started, ""
    for hint in hints:
        has = tuple(each for each in candidates if _generates_with(sheet.of(each), hint))
        if has:
            candidates, reason = has, f'by "{hint.words}" ({hint.where})'
            break
    found = [(settings.start, each) for each in sheet.ranges if _is_started(settings, each)]
    found += [(key, each) for each in sheet.ranges for key in _keys_of(settings, each)]
    order = sheet.versions.index
    missed = {
        version: [key for key, each in found if not _holds(each, order(version), sheet)]
        for version in candidates
    }
    best = min(reversed(candidates), key=lambda version: len(missed[version]))
    settings.sheet = sheet.of(best)
    newest = sheet.versions[-1]
    missed.setdefault(
        newest, [key for key, each in found if not _holds(each, order(newest), sheet)]
    )
    telling = [key for key in missed[newest] if key not in missed[best]]
    if telling:
        reason = _reason(
            settings, telling[0], next(each for key, each in found if key == telling[0])
        )
    settings.version_reason = (
        reason or limits or f"the newest that is known, since nothing says which; {OPTION} does"
    )


def _left_by_requirements(sheet: ConfigSheet, files: Sequence[Path]) -> tuple[Sequence[str], str]:
    """Return the known versions that requirements beside a script leave, and in words which do; all where they leave none."""
    if not sheet.package:
        return sheet.versions, ""
    for folder in (each for file in files if file.is_file() for each in folders_above(file)):
        for name in REQUIREMENTS:
            for file in sorted(folder.glob(name)):
                for number, found in limited_in(file, sheet.package):
                    left = _left_by(sheet.versions, found["limits"])
                    if left:
                        words = found[0].strip(" ,")
                        return left, f'the newest that "{words}" leaves ({file}:{number})'
    return sheet.versions, ""


def _left_by(versions: Sequence[str], limits: str) -> Sequence[str]:
    """Return the known versions that have a release within limits: each is of all releases from its own to the next one's."""
    firsts = [_without_zeros(_parts(each)) for each in versions]
    return [
        version
        for version, first, after in zip(versions, firsts, (*firsts[1:], None), strict=True)
        if all(_is_within(first, after, sign, _parts(word)) for sign, word in LIMIT.findall(limits))
    ]


def _is_within(
    first: tuple[int, ...], after: tuple[int, ...] | None, sign: str, limit: tuple[int, ...]
) -> bool:
    """Tell whether a limit leaves a release from a first one on and before another one, None for no end."""
    bound = _without_zeros(limit)
    if sign == "<":
        return first < bound
    if sign == "<=":
        return first <= bound
    alike = limit[:-1]  # `~=0.19.1` leaves what begins with 0.19
    return (after is None or after > bound) and (sign != "~=" or first[: len(alike)] <= alike)


def _without_zeros(number: tuple[int, ...]) -> tuple[int, ...]:
    """Return a release's number without zeros at its end, by which 1.0 and 1.0.0 are alike."""
    while number and not number[-1]:
        number = number[:-1]
    return number


def _started(settings: Settings) -> tuple[str, ...]:
    """Return the versions that have what a configuration starts by, whatever engine stands beside it; all where none has."""
    sheet = settings.sheet
    told = [each for each in sheet.ranges if _is_started(settings, each)]
    has = tuple(
        version
        for place, version in enumerate(sheet.versions)
        if all(_holds(each, place, sheet) for each in told)
    )
    return has or sheet.versions


def _reason(settings: Settings, key: str, versions: VersionRange) -> str:
    """Return in words what a key says of the version."""
    if versions.starts:
        said = f"up to {versions.until}" if versions.since is None else f"from {versions.since} on"
        return f"since {key} is a start of versions {said}"
    given = settings.flat[key]
    name = given.older or key
    shown = f"{name}={given.value}" if versions.values else name
    said = "is usual up to" if versions.usual else "is a key of versions up to"
    if versions.values and not versions.usual:
        said = "is possible up to"
    if versions.lacks:
        said = f"is given without {versions.lacks[0]}, as in configurations up to"
    return f"since {shown} {said} {versions.until} ({given.where})"


def _is_started(settings: Settings, versions: VersionRange) -> bool:
    """Tell whether a configuration starts by what only some versions have."""
    return any(fnmatchcase(settings.start, pattern) for pattern in versions.starts)


def _keys_of(settings: Settings, versions: VersionRange) -> Iterator[str]:
    """Yield the given keys of which a range speaks."""
    patterns = [name for each in versions.keys for name in spelled(each, settings.sheet.roles)]
    lacking = (name for each in versions.lacks for name in spelled(each, settings.sheet.roles))
    said = (settings.flat[name].value for name in lacking if name in settings.flat)
    if any(value not in versions.beside for value in said):
        return
    for key, given in settings.flat.items():
        if given.where.endswith(NOT_THERE):
            continue
        if versions.lacks and not OF_FILE.search(given.where):
            continue
        if given.added or (versions.values and given.value not in versions.values):
            continue
        if given.value in versions.beside:
            continue
        if any(fnmatchcase(given.older or key, pattern) for pattern in patterns):
            yield key


def runs_as(settings: Settings) -> str:
    """Return the version in which plans of a script are to run: its own, or of a checkout between two the first with all its keys."""
    sheet = settings.sheet
    if sheet.version not in sheet.versions:
        return sheet.version
    given = [(each.older or key, each.value) for key, each in settings.flat.items()]
    later = sheet.versions[sheet.versions.index(sheet.version) :]
    whole = (
        version
        for version in later
        if not any(_is_absent(replace(sheet, version=version), *each) for each in given)
    )
    return next(whole, sheet.version)


def lacks_key(sheet: ConfigSheet, key: str, value: object) -> bool:
    """Tell whether a sheet's version has no key of a name, nor another one for the same setting, for a value."""
    return name_in(sheet, key, value) is None


def name_in(sheet: ConfigSheet, key: str, value: object) -> str | None:
    """Return the key by which a sheet's version takes what the newest one's key says; None where it has none for that value."""
    settings = (each for each in sheet.every_setting() if key in (*each.keys, *each.over))
    alike = dict.fromkeys((key, *(name for each in settings for name in (*each.keys, *each.over))))
    found = (name for name in alike if not _is_absent(sheet, name, value))
    older = (
        key for old, new in sheet.older.items() if new == key and not _is_absent(sheet, old, value)
    )
    return next(found, None) or next(older, None)


def _is_gone(sheet: ConfigSheet, key: str, value: object) -> bool:
    """Tell whether all ranges of versions that speak of a key end before the sheet's own: it has the key no more."""
    order = sheet.versions.index
    ends = [each.until for each in _ranges_of(sheet, key, value)]
    return bool(ends) and all(end is not None and order(end) < order(sheet.version) for end in ends)


def _is_of_first(sheet: ConfigSheet, key: str, value: object) -> bool:
    """Tell whether all ranges of versions that speak of a key end with the oldest known one."""
    return all(each.until == sheet.versions[0] for each in _ranges_of(sheet, key, value))


def _is_absent(sheet: ConfigSheet, key: str, value: object) -> bool:
    """Tell whether ranges of versions speak of a key, and none of them holds for the sheet's own."""
    place = sheet.versions.index(sheet.version) if sheet.version in sheet.versions else None
    ranges = _ranges_of(sheet, key, value)
    return (
        place is not None
        and bool(ranges)
        and not any(_holds(each, place, sheet) for each in ranges)
    )


def _ranges_of(sheet: ConfigSheet, key: str, value: object) -> list[VersionRange]:
    """Return the ranges of versions that have a key, for a value."""
    return [
        each
        for each in sheet.ranges
        if not (each.usual or each.lacks) and (not each.values or value in each.values)
        for pattern in each.keys
        if any(fnmatchcase(key, name) for name in spelled(pattern, sheet.roles))
    ]


def _holds(versions: VersionRange, place: int, sheet: ConfigSheet) -> bool:
    order = sheet.versions.index
    first = 0 if versions.since is None else order(versions.since)
    last = len(sheet.versions) if versions.until is None else order(versions.until)
    return first <= place <= last


def _engine(sheet: ConfigSheet, hint: Hint) -> str | None:
    """Return the engine sheet that an engine's version is of."""
    firsts = sheet.engine_versions.get(hint.of, FrozenDict())
    wanted = _parts(hint.version)
    known = [first for first in firsts if _parts(first) <= wanted]
    return firsts[max(known, key=_parts)] if known else None


def _generates_with(sheet: ConfigSheet, hint: Hint) -> bool:
    """Tell whether a framework's version generates with an engine of the version that a file names."""
    named = _engine(sheet, hint)
    return named is not None and named in sheet.settings["rollout_engine"].values.values()


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version))


def _with_engine(sheet: ConfigSheet, hint: Hint) -> ConfigSheet:
    """Return a sheet whose engine is of the version that a file names."""
    named, setting = _engine(sheet, hint), sheet.settings["rollout_engine"]
    if named is None:
        return sheet
    family = set(sheet.engine_versions[hint.of].values())
    values = {word: named if meant in family else meant for word, meant in setting.values.items()}
    changed = replace(setting, values=FrozenDict(values))
    return replace(sheet, settings=sheet.settings.with_item("rollout_engine", changed))
