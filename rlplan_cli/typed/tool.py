"""What a tool's file gives, what is said of its arguments in their schema, and mistakes as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from rlplan.errors import (
    FileError,
    RlplanError,
    SeveralMistakesError,
    UnknownNameError,
    UserError,
    one_of,
)

T = TypeVar("T")

# Arguments of tools that say their unit, by the options of commands that messages name.
OPTIONS = {
    "mean_response": "mean_response_tokens",
    "mean_prompt": "mean_prompt_tokens",
    "host_memory_gb": "host_memory_bytes",
    "set": "values",
    "for": "framework",
    "as": "taken_as",
}


class ToolModule(Protocol):
    """Be a file of `rlplan_cli/typed/tools/`."""

    Arguments: type[Any]
    Answer: type[Any]

    def call(self, asked: Any) -> Any:  # noqa: ANN401 -- each file has types of its own
        """Return the answer."""

    def words(self, answer: Any) -> str:  # noqa: ANN401
        """Return the answer in a few lines."""


@dataclass(frozen=True, slots=True)
class Said:
    """Say in an argument's schema what it means."""

    text: str

    def __get_pydantic_json_schema__(self, source: Any, handler: Any) -> dict[str, Any]:  # noqa: ANN401
        """Put the text beside what the schema says of the type."""
        return {**handler(source), "description": self.text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """Hold one mistake in the arguments, as a command reports it in one line with exit code 2.

    Attributes:
        kind: Of the tree in `rlplan.errors`.
        message: All of it in words.
        problem: What is wrong, as a clause.
        argument: The tool's argument that is at fault, where one is.
        file: Path of the file that is at fault, as it was given; or `arguments`.
        field: Dotted path inside the file.
        value: What was found.
        allowed: What would be accepted.
        hint: What may have been meant.
    """

    kind: str
    message: str
    problem: str
    argument: str | None = None
    file: str | None = None
    field: str | None = None
    value: str | int | float | bool | None = None
    allowed: str | None = None
    hint: str | None = None


ARGUMENTS = "arguments"
# Arguments that are decoded by themselves, and so are named as a file is.
INSIDE = ("limits", "plan")
# How messages begin to list names (`rlplan.errors`).
KNOWN, MEANT = "known: ", "did you mean"


def mistakes_of(error: UserError) -> tuple[Mistake, ...]:
    """Return an error as values, one for each thing that is wrong."""
    if isinstance(error, SeveralMistakesError):
        return tuple(mistake for each in error.errors for mistake in mistakes_of(each))
    kind, message = type(error).__name__, str(error)
    if isinstance(error, UnknownNameError):
        # The message lists known names and what may be meant, as far as a reader looks through them.
        parts = message.split("; ")
        known = next((each for each in parts if each.startswith(KNOWN)), None)
        return (
            Mistake(
                kind=kind,
                message=message,
                problem=f"unknown {error.kind}",
                value=error.name,
                allowed=None if known is None else known.removeprefix(KNOWN),
                hint=next((each for each in parts if each.startswith(MEANT)), None),
            ),
        )
    if not isinstance(error, FileError):
        return (Mistake(kind=kind, message=message, problem=message),)
    near = (error.nearest, *error.others) if error.nearest else ()
    shown = error.value if isinstance(error.value, str | int | float | bool | None) else None
    return (
        Mistake(
            kind=kind,
            message=message,
            problem=error.problem,
            argument=_argument(error),
            file=None if error.file.startswith("--") else error.file,
            field=error.field,
            value=str(error.value) if shown is None and error.value is not None else shown,
            allowed=error.allowed,
            hint=f"{MEANT} {one_of(near)}?" if near else None,
        ),
    )


def named(mistake: Mistake, given: Mapping[str, Any]) -> Mistake:
    """Return a mistake with the argument at fault, where its value, or its file, is that of one argument alone."""
    if mistake.argument is not None:
        return mistake
    wrong = {each for each in (mistake.file, mistake.value) if isinstance(each, str)}
    names = [name for name, value in given.items() if isinstance(value, str) and value in wrong]
    return replace(mistake, argument=names[0]) if len(names) == 1 else mistake


def _argument(error: FileError) -> str | None:
    """Return the tool's argument that an error is about: the option that a command calls so, or a field of the arguments."""
    if error.file.startswith("--"):
        name = error.file.removeprefix("--").replace("-", "_")
        return OPTIONS.get(name, name)
    if error.file in INSIDE:
        return error.file
    return error.field.partition(".")[0] if error.file == ARGUMENTS and error.field else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Hold what is wrong with what was given, in place of an answer."""

    mistakes: tuple[Mistake, ...]


def tried(call: Callable[[], T]) -> T | Refused:
    """Return what a call answers, or what is wrong with what it was given; failures of our own are raised."""
    try:
        return call()
    except UserError as error:
        return Refused(mistakes=mistakes_of(error))
    except RlplanError as error:
        kind, text = type(error).__name__, str(error)
        return Refused(mistakes=(Mistake(kind=kind, message=text, problem=text),))
    except OSError as error:
        if error.filename is None:
            raise
        problem = error.strerror or "cannot be read"
        file = str(error.filename)
        message, kind = f"{file}: {problem}", type(error).__name__
        return Refused(mistakes=(Mistake(kind=kind, message=message, problem=problem, file=file),))
