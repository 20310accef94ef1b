"""What a rule of a plan is, and what it answers."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

# What a rule looks at: the whole plan, one pool, one task, or the order of one pool.
Scope = Literal["plan", "pool", "task", "order"]


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
class Rule:
    """Hold a rule of a plan.

    Attributes:
        reason: Why a plan that breaks it is none.
        needs: What must be given for it to be asked: its function's parameters.
        find: Returns the problem; None where the rule is kept.
    """

    name: str
    reason: str
    scope: Scope
    needs: tuple[str, ...]
    find: Callable[..., Problem | None]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Hold a problem with the rule that found it, and the part of the plan that it was found in."""

    rule: Rule
    place: str
    problem: Problem

    @property
    def field(self) -> str:
        """Return the dotted path of the field."""
        return ".".join(part for part in (self.place, self.problem.field) if part)


def rule(scope: Scope) -> Callable[[Callable[..., Problem | None]], Rule]:
    """Make a rule of a function: its name is the rule's, its docstring the reason."""

    def made(find: Callable[..., Problem | None]) -> Rule:
        name, reason = find.__name__.replace("_", " "), (find.__doc__ or "").split("\n")[0]
        return Rule(name, reason, scope, tuple(signature(find).parameters), find)

    return made


def listed(values: Any) -> str:  # noqa: ANN401 -- of anything that has a text
    """Return values for people, separated by commas."""
    return ", ".join(map(str, values))
