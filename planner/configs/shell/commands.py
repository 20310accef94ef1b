"""What a script's own commands do: print, export, leave; what else would be started is written down."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from planner.configs.shell.conditions import Truth
from planner.configs.shell.text import Gap, Text, joined
from planner.configs.shell.words import RefusedError, Value, Words, line_of, source

if TYPE_CHECKING:
    from tree_sitter import Node

# Commands that change nothing of what is launched, and succeed.
SILENT: Final = frozenset(
    {"set", "trap", "ulimit", "mkdir", "cd", "pushd", "popd", "chmod", "sleep", "wait"}
    | {"pip", "pip3", "rm", "cp", "mv", "ln", "wget", "curl", "true", ":"}
)
ASSIGNING: Final = frozenset(("export", "declare", "local", "readonly", "typeset"))
# What an `exit` may be: success, failure, or what the last command said.
SUCCESS: Final = ("0", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Hold a command that a script would start.

    Attributes:
        line: Where it is written, from 1.
        words: Its name and arguments.
        variables: That are set for it alone.
    """

    line: int
    words: tuple[Text, ...]
    variables: tuple[tuple[str, Text], ...] = ()


@dataclass(slots=True, kw_only=True)
class Evaluated:
    """Hold what a script would do.

    Attributes:
        commands: What it would start, in order; assignments, output and files left out.
        gaps: What could not be evaluated, and decides what follows it.
        refusal: Why the script stops before its end, with its line.
        exported: Variables that other scripts get which it starts.
    """

    commands: list[Command] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    refusal: tuple[int, str] | None = None
    exported: dict[str, Text] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Hold what a script has come to: all that playing on from there depends on or adds to."""

    commands: tuple[Command, ...]
    gaps: tuple[Gap, ...]
    variables: dict[str, Value]
    arguments: tuple[Text, ...]
    functions: dict[str, "Node"]
    exports: frozenset[str]
    printed: tuple[Text, ...] | None
    said: str


class ExitError(Exception):
    """Leave the script."""


class ReturnError(Exception):
    """Leave a function."""


class RoundError(Exception):
    """Leave a round of a loop.

    Attributes:
        last: Whether it is the last one.
    """

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.last = last


class Commands:
    """Play commands by their names.

    Attributes:
        found: What the script does.
        words: Its variables.
        exports: Names of variables that other scripts get which it starts.
    """

    words: Words

    def __init__(self, probes: dict[str, bool], wanted: Callable[[Command], bool]) -> None:
        self.found = Evaluated()
        self._probes, self._wanted = probes, wanted
        self._printed: list[Text] | None = None
        self._said = ""
        self._loops = 0
        self._functions: dict[str, Node] = {}
        self.exports: set[str] = set()

    def _state(self) -> State:
        """Return what the script has come to."""
        return State(
            commands=tuple(self.found.commands),
            gaps=tuple(self.found.gaps),
            variables=dict(self.words.variables),
            arguments=self.words.arguments,
            functions=dict(self._functions),
            exports=frozenset(self.exports),
            printed=None if self._printed is None else tuple(self._printed),
            said=self._said,
        )

    def _put(self, state: State) -> None:
        """Go on from another state."""
        self.found.commands[:] = state.commands
        self.found.gaps[:] = state.gaps
        self.words.variables.clear()
        self.words.variables.update(state.variables)
        self.words.arguments = state.arguments
        self._functions = dict(state.functions)
        self.exports = set(state.exports)
        self._printed = None if state.printed is None else list(state.printed)
        self._said = state.said

    def named(self, name: str, words: list[Text], node: "Node") -> Truth:
        """Play a command by its name; what no rule is for is kept as one that would be started."""
        players: dict[str, Callable[[list[Text], Node], None]] = {
            **dict.fromkeys(("echo", "printf"), self._echo),
            **dict.fromkeys(("basename", "dirname"), self._part_of_path),
            **dict.fromkeys(("exit", "return"), self._leave),
            **dict.fromkeys(("break", "continue"), self._leave_round),
            **dict.fromkeys(ASSIGNING, self._export),
            "shift": self._shift,
        }
        if name in players:
            players[name](words, node)
            return True
        if name in SILENT or name == "false":
            return name != "false"
        text = " ".join(word.value for word in words)
        known = next((answer for probe, answer in self._probes.items() if probe in text), None)
        if known is None:
            self._start(name, words, node)
        return known

    def _start(self, name: str, words: list[Text], node: "Node") -> None:
        if name in {"source", "."}:
            self.note(node, "is not followed")
            return
        given = [part for part in node.children if part.type == "variable_assignment"]
        variables = tuple(self._given(part) for part in given)
        self.found.commands.append(
            Command(line=line_of(node), words=tuple(words), variables=variables)
        )
        if self._printed is not None:
            gap = Gap(line=line_of(node), source=short(node), reason="it is not run")
            self._print(Text("$(...)", line_of(node), (gap,)))

    def _given(self, node: "Node") -> tuple[str, Text]:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        assert name is not None
        text = self.words.text(value) if value is not None else Text("", line_of(node))
        return source(name), text

    def _echo(self, words: list[Text], node: "Node") -> None:
        said = [word for word in words[1:] if word.value not in {"-n", "-e"}]
        self._print(joined(said, " ", line_of(node)))

    def _part_of_path(self, words: list[Text], node: "Node") -> None:
        del node
        if len(words) > 1:
            folder, _, file = words[1].value.rstrip("/").rpartition("/")
            part = file if words[0].value == "basename" else folder or "."
            self._print(words[1].with_value(part))

    def _export(self, words: list[Text], node: "Node") -> None:
        del node
        for word in words[1:]:
            variable, equals, value = word.value.partition("=")
            if equals:
                self.words.variables[variable] = word.with_value(value)

    def _shift(self, words: list[Text], node: "Node") -> None:
        del node
        count = words[1].value if len(words) > 1 else "1"
        if count.isdecimal() and int(count) <= len(self.words.arguments):
            self.words.arguments = self.words.arguments[int(count) :]

    def _leave_round(self, words: list[Text], node: "Node") -> None:
        del node
        if self._loops:
            raise RoundError(last=words[0].value == "break")

    def _print(self, text: Text) -> None:
        if self._printed is not None:
            self._printed.append(text)
        self._said = text.value or self._said

    def _leave(self, words: list[Text], node: "Node") -> None:
        code = words[1].value if len(words) > 1 else ""
        if words[0].value == "return":
            raise ReturnError
        if code not in SUCCESS and not self._printed:
            raise RefusedError(line_of(node), self._said or f"exit {code}")
        raise ExitError

    def note(self, node: "Node", reason: str) -> None:
        """Keep what could not be evaluated."""
        self.found.gaps.append(Gap(line=line_of(node), source=short(node), reason=reason))


def short(node: "Node") -> str:
    """Return a part of a script as it is written, in one line of at most 60 characters."""
    text = " ".join(source(node).split())
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004
