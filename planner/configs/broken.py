"""What breaks a rule of a framework: the key, why, and what would do."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from planner.configs.models import model_of
from planner.configs.reading.settings import Settings
from profiles.catalog import load_model, model_names
from rlplan.errors import FileError
from rlplan.models.model import ModelArchitecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """Say what breaks a rule.

    Attributes:
        key: The key whose value does.
        problem: Why, as a clause that follows the value.
        allowed: What would do.
    """

    key: str
    problem: str
    allowed: str


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Hold what rules look at.

    Attributes:
        settings: The configuration.
        start: The module or script that it starts.
        model: Takes the place of the actor's model.
    """

    settings: Settings
    start: str = ""
    model: str | None = None

    @cached_property
    def actor(self) -> ModelArchitecture | None:
        """Return the actor's architecture; None where its sheet is not known by name."""
        try:
            named = self.model or self.settings.path("model")
        except FileError:
            return None
        sheet = model_of(self.settings.sheet.models.get(named, named))
        return load_model(sheet) if sheet in model_names() else None


Check = Callable[[Subject], Iterable[Broken]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Hold a rule.

    Attributes:
        name: What it asks for, in words with dashes.
        source: Where the framework asks for it.
        stops: Whether a run stops; else it loses something, and goes on.
    """

    name: str
    source: str
    check: Check
    stops: bool = True

    def broken(self, subject: Subject) -> tuple[Broken, ...]:
        """Return what breaks it; nothing where a value that it needs is not known."""
        try:
            return tuple(self.check(subject))
        except FileError:
            return ()


def unless(holds: bool, key: str, problem: str, allowed: str) -> Iterator[Broken]:
    """Yield what breaks a rule where its condition does not hold."""
    if not holds:
        yield Broken(key=key, problem=problem, allowed=allowed)


def divides(part: int, whole: int) -> bool:
    """Tell whether a size, at least 1, divides a number."""
    return part >= 1 and whole % part == 0
