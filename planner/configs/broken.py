"""What breaks a rule of a framework: the key, why, and what would do; and keys that its sheet does not know."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from typing import Final

from rlplan.errors import FileError
from rlplan.models import ModelArchitecture
from rlplan.planner.configs.frameworks import has, load_part
from rlplan.planner.configs.models import model_of
from rlplan.planner.configs.reading.settings import RoleSettings, Settings, fits_any
from rlplan.planner.configs.reading.sheet import spelled
from rlplan.profiles.catalog import load_model, model_names

# Names that are alike to this share differ by a slip: `ulyses_size` and `ulysses_size`, not `max_input` and `max_prompt`.
ALIKE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Say what breaks a rule.

    Attributes:
        key: The key whose value does; a rule may give the setting's name in its place.
        problem: Why, as a clause that follows the value.
        allowed: What would do.
        stops: Whether a run ends at once, not only if something happens.
    """

    key: str
    problem: str
    allowed: str
    stops: bool = True


Check = Callable[[Settings], Iterable[Broken]]


@dataclass(frozen=True, slots=True)
class Rule:
    """Hold a rule, where the framework asks for it, and since which version."""

    check: Check
    source: str
    since: str | None = None

    @property
    def name(self) -> str:
        """Return what it asks for, in words with dashes."""
        return self.check.__name__.replace("_", "-")

    def broken(self, settings: Settings) -> tuple[Broken, ...]:
        """Return what breaks it; nothing in versions without it, or where a value that it needs is not known."""
        known, sheet = settings.sheet.settings, settings.sheet
        order = sheet.versions.index
        if (
            self.since is not None
            and sheet.version in sheet.versions
            and order(sheet.version) < order(self.since)
        ):
            return ()
        try:
            found = tuple(self.check(settings))
        except FileError:
            return ()
        return tuple(
            replace(each, key=settings.key_of(each.key)) if each.key in known else each
            for each in found
        )


def rules_of(framework: str) -> tuple[Rule, ...]:
    """Return the rules of a framework; none where none are known."""
    rules: tuple[Rule, ...] = load_part(framework, "rules").RULES if has(framework, "rules") else ()
    return rules


def unless(holds: bool, key: str, problem: str, allowed: str) -> Iterator[Broken]:
    """Yield what breaks a rule where its condition does not hold."""
    if not holds:
        yield Broken(key=key, problem=problem, allowed=allowed)


def actor_of(settings: Settings) -> ModelArchitecture | None:
    """Return the actor's architecture; None where its sheet is not known by name."""
    try:
        named = settings.model or settings.path("model")
    except FileError:
        return None
    sheet = model_of(settings.sheet.models.get(named, named))
    return load_model(sheet) if sheet in model_names() else None


def divides(part: int, whole: int) -> bool:
    """Tell whether a size, at least 1, divides a number."""
    return part >= 1 and whole % part == 0


def ranks_divide_the_heads(own: RoleSettings, name: str) -> Iterator[Broken]:
    """Yield what breaks that a size of the actor's trainer gives each rank equally many of its heads, as far as it is known."""
    model = actor_of(own.settings)
    if model is not None:
        problem = f"does not divide {model.num_heads} heads"
        holds = divides(own.whole(name), model.num_heads)
        yield from unless(holds, own.key_of(name), problem, "a divisor")


def keys_are_known(settings: Settings) -> Iterator[Broken]:
    """Give no key that a framework's classes do not have: its start stops at it, unless a copy has more."""
    sheet, known = settings.sheet, set(settings.sheet.every_key())
    for key, until in older_keys(settings):
        problem = f"is a key of versions up to {until}, and {sheet.version} stops at it"
        yield Broken(key=key, problem=problem, allowed="what it is called now", stops=False)
    for key in unknown_keys(settings):
        nearest = nearest_key(key, known)
        if nearest is not None:
            problem = f"is no key of {sheet.title} {sheet.version}, which stops at it unless your copy has it"
            yield Broken(key=key, problem=problem, allowed=nearest, stops=False)


# Keys that a framework's sheet does not know: misspelt ones, and those that somebody's copy of it has beside its own.


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
