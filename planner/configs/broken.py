"""What breaks a rule of a framework: the key, why, and what would do."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from rlplan.errors import FileError
from rlplan.models import ModelArchitecture
from rlplan.planner.configs.frameworks import has, load_part
from rlplan.planner.configs.models import model_of
from rlplan.planner.configs.reading.settings import RoleSettings, Settings
from rlplan.planner.configs.reading.unknown_keys import nearest_key, older_keys, unknown_keys
from rlplan.profiles.catalog import load_model, model_names


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
