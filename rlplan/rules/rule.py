"""What a rule of a plan is, and what it answers."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rlplan.rules.contexts import Context

C = TypeVar("C", bound=Context)


@dataclass(frozen=True, slots=True)
class Problem:
    """Say what is wrong, as a clause, and what would be right.

    Attributes:
        field: Of the pool or task that the rule looks at; empty for all of it.
    """

    field: str
    words: str
    value: object = None
    allowed: str | None = None
    nearest: str | None = None


@dataclass(frozen=True, slots=True)
class Rule(Generic[C]):
    """Hold a rule of a plan.

    Attributes:
        reason: Why a plan that breaks it is none.
        looks_at: The parts of a plan that it is asked of.
        find: Returns the problem; None where the rule is kept, or what it needs is not known.
    """

    name: str
    reason: str
    looks_at: type[C]
    find: Callable[[C], Problem | None]

    def refusals(self, contexts: Iterable[Context]) -> Iterator["Refusal"]:
        """Yield the problems of those parts of a plan that the rule is asked of."""
        for context in contexts:
            if isinstance(context, self.looks_at):
                problem = self.find(context)
                if problem is not None:
                    yield Refusal(self, context.place, problem)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Hold a problem with the rule that found it, and the part of the plan that it was found in."""

    rule: Rule[Any]
    place: str
    problem: Problem

    @property
    def field(self) -> str:
        """Return the dotted path of the field."""
        return ".".join(part for part in (self.place, self.problem.field) if part)


def rule(looks_at: type[C]) -> Callable[[Callable[[C], Problem | None]], Rule[C]]:
    """Make a rule of a function: its name is the rule's, its docstring the reason."""

    def made(find: Callable[[C], Problem | None]) -> Rule[C]:
        name, reason = find.__name__.replace("_", " "), (find.__doc__ or "").split("\n")[0]
        return Rule(name, reason, looks_at, find)

    return made


def listed(values: Any) -> str:  # noqa: ANN401 -- of anything that has a text
    """Return values for people, separated by commas."""
    return ", ".join(map(str, values))
