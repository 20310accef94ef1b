"""A word of a script: what it expands to, where it is written, and what of it could not be evaluated."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

# How a reason ends of what depends on the machine, or the time, and on nothing in the script.
OF_THE_RUN = "is known where it runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Name what could not be evaluated.

    Attributes:
        line: Where it is written, from 1.
        source: As it is written.
        reason: Why, as a clause.
        unset: Whether it is a variable or argument that is not set, which to a shell is empty.
        texts: Texts that a function is given whose result this is.
    """

    line: int
    source: str
    reason: str
    unset: bool = False
    texts: tuple[str, ...] = ()

    def is_unset(self) -> bool:
        """Return whether it is a variable or argument that is not set."""
        return self.unset

    def is_argument(self) -> bool:
        """Return whether it is an argument that the script is not given, which no environment sets."""
        return self.unset and self.source.strip("${}").isdecimal()

    def __str__(self) -> str:
        """Return the gap in words."""
        return f"line {self.line}: {self.source}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Text:
    """Hold a word.

    Attributes:
        value: Its text; what could not be evaluated stands in it as it is written.
        line: Where it is written, from 1; 0 where it is of no file.
        gaps: What could not be evaluated.
    """

    value: str
    line: int = 0
    gaps: tuple[Gap, ...] = ()

    def __add__(self, other: "Text") -> "Text":
        """Return both, one after the other."""
        return Text(self.value + other.value, self.line or other.line, self.gaps + other.gaps)

    def with_empty(self, empty: Callable[[Gap], bool]) -> "Text":
        """Return it without its gaps where all of them are empty; else as it is."""
        if not all(map(empty, self.gaps)):
            return self
        value = self.value
        for gap in self.gaps:
            value = value.replace("".join(gap.source.split()), "")
        return Text(value, self.line)

    def with_value(self, value: str) -> "Text":
        """Return another text of the same origin."""
        return Text(value, self.line, self.gaps)


def joined(texts: Iterable[Text], separator: str, line: int) -> Text:
    """Return texts as one, of that line."""
    parts = list(texts)
    gaps = tuple(gap for part in parts for gap in part.gaps)
    return Text(separator.join(part.value for part in parts), line, gaps)


def at_their_lines(commands: Sequence[tuple[int, str]]) -> str:
    """Return commands as a script in which they stand on their lines, as far as these follow each other."""
    text = ""
    for line, command in commands:
        missing = line - 1 - text.count("\n")
        text += ("\n" * missing if missing > 0 or not text else "; ") + command
    return text
