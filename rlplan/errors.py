"""The error tree: everything that rlplan raises on purpose.

RlplanError                     exit code 1, a failure of our own
├── DivergedError               numbers of a run are not finite any more
├── WorkerLostError             a process of a run was killed or crashed
│   └── NodesMissingError       nodes of a cluster that a run needs are not there, and have not come in time
└── UserError                   exit code 2, a mistake in what the user gave
    ├── FileError               a file that is missing, broken, of another version, or has a wrong field
    │   ├── MissingValueError   a value that nothing at hand says, and the option that would say it
    │   └── MissingValuesError  several of those, and one command that says all of them
    ├── UnknownNameError        a name (model, device, algorithm, ...) that is not known
    ├── MissingPartError        a framework of which what is asked for (its keys, its log, ...) is not known
    ├── PlanError               a plan or job whose parts contradict each other
    │   └── CapabilityError     a valid plan that asks for what its executor cannot do
    ├── InfeasibleError         nothing that was asked for fits the hardware
    │   └── UnfinishedError     a search found nothing in the time that it was given: something may fit
    ├── MissingFactError        a cost was asked for that no profile and no device sheet can give
    └── SeveralMistakesError    more than one of the above, all said at once

An infeasible candidate inside the search is a value with a reason, never an exception;
`InfeasibleError` is for a user's own plan, or for a job for which no plan is left.
"""

import difflib
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

# Of what a user's file holds, messages show this many characters, and of a sentence about it so many.
LONGEST_SHOWN = 200
LONGEST_PROBLEM = 2000
# Of more known names than this a message shows the nearest three; a reader looks through no longer list.
MOST_LISTED = 60
NEAREST_SHOWN = 3


class RlplanError(Exception):
    """Be the root of all errors that rlplan raises on purpose."""

    exit_code = 1

    def __reduce__(self) -> tuple[object, ...]:
        """Let errors cross process borders: built from their message, not from their arguments."""
        return (_rebuilt, (type(self), self.args, self.__dict__))


class DivergedError(RlplanError):
    """Say which numbers of a run are not finite any more: another start or layout would end there again."""


class WorkerLostError(RlplanError):
    """Say which workers of a run have ended before their time, and what became of the run."""


class NodesMissingError(WorkerLostError):
    """Say which nodes a run lacks, and what is there."""


class UserError(RlplanError):
    """Say what is wrong with what the user gave, and what would be right."""

    exit_code = 2


class FileError(UserError):
    """Name the file, the field, the value found, what is allowed and the nearest fix.

    Args:
        file: Path as the user gave it.
        problem: What is wrong, as a clause ("unknown key", "must be at least 1").
        field: Dotted path of the field inside the file, if any.
        value: The value found, if there is one worth showing.
        allowed: What would be accepted.
        nearest: The closest accepted value or key.
        others: The next closest ones.
    """

    def __init__(
        self,
        file: str,
        problem: str,
        *,
        field: str | None = None,
        value: object = None,
        allowed: str | None = None,
        nearest: str | None = None,
        others: Sequence[str] = (),
    ) -> None:
        self.file, self.problem, self.field = file, problem, field
        self.value, self.allowed, self.nearest = value, allowed, nearest
        self.others = tuple(others)
        where = f"{file}: {cut(field)}" if field else file
        parts = [f"{where}: {cut(problem, LONGEST_PROBLEM)}"]
        if value is not None:
            parts.append(f"found {cut(value)!r}" if isinstance(value, str) else f"found {value!r}")
        if allowed:
            parts.append(f"allowed: {allowed}")
        if nearest:
            parts.append(f"did you mean {one_of((nearest, *others))}?")
        super().__init__("; ".join(parts))


class MissingValueError(FileError):
    """Name a value that nothing at hand says, and the words of a command line that would say it.

    Args:
        options: These words, with an example for the value.
        key: The key whose value it is; empty where none has it.
        example: The example.
        hint: What else may say it, behind what is allowed; empty for nothing.
        shown: What else `FileError` shows.
    """

    def __init__(
        self,
        file: str,
        problem: str,
        *,
        options: Sequence[str],
        key: str = "",
        example: object = None,
        hint: str = "",
        **shown: Any,  # noqa: ANN401 -- as `FileError` has them
    ) -> None:
        self.options, self.key, self.example = tuple(options), key, example
        self.missing, self.hint, self.lead = (self,), hint, ""
        self.shown = shown
        allowed = f"{shown.get('allowed') or ''}{hint}" or None
        super().__init__(file, problem, **{**shown, "allowed": allowed})

    def with_example(self, example: object) -> "MissingValueError":
        """Return it with another example for the value of its key."""
        return MissingValueError(
            self.file,
            self.problem,
            options=("--set", f"{self.key}={example}"),
            key=self.key,
            example=example,
            **self.shown,
        )

    def with_hint(self, hint: str) -> "MissingValueError":
        """Return it with what else may say the value."""
        return MissingValueError(
            self.file,
            self.problem,
            options=self.options,
            key=self.key,
            example=self.example,
            hint=hint,
            **self.shown,
        )


class MissingValuesError(FileError):
    """Say all values at once that nothing at hand says, and the options that would say them.

    Attributes:
        missing: Each of them, in the order in which they were found.
        options: The words of a command line that say all of them, with examples for the values.
        hint: What else may say them, behind what is allowed; empty for nothing.
        lead: What is said before all of them; empty for nothing.
    """

    def __init__(
        self, missing: Iterable[MissingValueError], hint: str = "", lead: str = ""
    ) -> None:
        self.missing, self.hint, self.lead = tuple(missing), hint, lead
        self.options = tuple(word for each in self.missing for word in each.options)
        told = (
            f"{each.field} ({each.file}: {cut(each.problem)})"
            if each.field
            else f"{each.file} {each.problem}"
            for each in self.missing
        )
        count = f"{len(self.missing)} values are said nowhere at hand"
        first, allowed = self.missing[0], f"{shlex.join(self.options)}, with your values{hint}"
        super().__init__(first.file, f"{lead}{count}: {'; '.join(told)}", allowed=allowed)
        self.field = first.field


def one_of(names: Sequence[str]) -> str:
    """Return names in quotes, as a choice: `'a', 'b' or 'c'`."""
    *first, last = map(repr, names)
    return f"{', '.join(first)} or {last}" if first else last


def cut(text: str, longest: int = LONGEST_SHOWN) -> str:
    """Return a text's beginning, for messages that show what a user's file holds."""
    return text if len(text) <= longest else text[:longest] + "..."


def printable(text: str) -> str:
    """Return a text in which a terminal finds no commands: control characters as Python writes them."""
    if text.isprintable():
        return text
    kept = (each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text)
    return "".join(kept)


def unreadable(file: str, error: OSError | UnicodeDecodeError) -> FileError:
    """Return what to say of a file that could not be read as text."""
    if isinstance(error, UnicodeDecodeError):
        line = error.object.count(b"\n", 0, error.start) + 1
        return FileError(
            file,
            f"cannot be read: line {line} is not text in UTF-8",
            value=f"byte 0x{error.object[error.start]:02x}",
            allowed="a text file, saved as UTF-8",
        )
    return FileError(file, f"cannot be read: {error.strerror or error}")


class UnknownNameError(UserError):
    """Name an unknown name, what it was meant to be, and the known ones, of many the nearest alone.

    Args:
        hint: What else the message says.
        nearest: The known names that may be meant, the likeliest first; None looks for them.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        known: Iterable[str],
        *,
        hint: str = "",
        nearest: Sequence[str] | None = None,
    ) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        many = len(self.known) > MOST_LISTED
        shown = NEAREST_SHOWN if many else 1
        close = nearest_names(name, self.known, shown) if nearest is None else nearest
        parts = [f"unknown {kind} {cut(name)!r}"]
        if not many:
            parts.append(f"known: {', '.join(self.known)}")
        if close:
            parts.append(f"did you mean {one_of(close)}?")
        if hint:
            parts.append(hint)
        super().__init__("; ".join(parts))


class MissingPartError(UserError):
    """Say what is not known of a framework, and of which it is."""

    def __init__(self, problem: str, known: Iterable[str]) -> None:
        self.known = sorted(known)
        super().__init__(f"{problem}; known of: {', '.join(self.known) or 'none'}")


class PlanError(UserError):
    """Say which parts of a plan or job contradict each other."""


class CapabilityError(PlanError):
    """Name what a valid plan asks for and its executor cannot do, and what that can do instead."""

    def __init__(self, capability: str, problem: str) -> None:
        self.capability = capability
        super().__init__(problem)


class InfeasibleError(UserError):
    """Say why nothing fits: which GPU, which term, by how much, and the nearest change that does."""


class UntoldError(InfeasibleError):
    """Say why a framework takes none of the plans that were found."""


class UnfinishedError(InfeasibleError):
    """Say in what time no plan was found, of a search that had not seen all when it ended."""


class MissingFactError(UserError):
    """Say which cost is unknown and how to measure or supply it."""


class SeveralMistakesError(UserError):
    """Say all that is wrong at once, numbered.

    Attributes:
        errors: The mistakes, in the order in which they were found.
    """

    def __init__(self, errors: Iterable[UserError]) -> None:
        self.errors = tuple(errors)
        told = " ".join(f"({number}) {error}" for number, error in enumerate(self.errors, 1))
        super().__init__(f"{len(self.errors)} mistakes: {told}")


def refuse(errors: Sequence[UserError]) -> None:
    """Do nothing where there are no mistakes.

    Raises:
        UserError: The only mistake, or all of them as one.
    """
    if errors:
        raise errors[0] if len(errors) == 1 else SeveralMistakesError(errors)


def _rebuilt(
    kind: type[RlplanError], args: tuple[object, ...], state: dict[str, object]
) -> RlplanError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `name`, or None when nothing is close.

    A name that was typed in part means the shortest one that begins so; capitals do not count.
    """
    return next(iter(nearest_names(name, known, 1)), None)


def nearest_names(name: str, known: Iterable[str], most: int) -> tuple[str, ...]:
    """Return so many of the known names, the likeliest first: those that begin with `name`, then those like it."""
    names = {each: each.lower() for each in known}
    small = cut(name).lower()
    begun = [each for each, lower in names.items() if len(small) > 1 and lower.startswith(small)]
    begun.sort(key=lambda each: (len(each), each))
    if len(begun) >= most:
        return tuple(begun[:most])
    matches = difflib.get_close_matches(small, names.values(), n=most, cutoff=0.5)
    close = [each for match in matches for each, lower in names.items() if lower == match]
    return tuple(dict.fromkeys([*begun, *close]))[:most]
