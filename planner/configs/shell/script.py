"""Evaluate a script statement by statement, as a shell would run it, without running anything."""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from planner.configs.shell.branches import Branches
from planner.configs.shell.commands import Command, Evaluated, ExitError, ReturnError, short
from planner.configs.shell.conditions import (
    Truth,
    both,
    either,
    inverse,
    number_is_true,
    truth_of,
)
from planner.configs.shell.text import Gap, Text, joined
from planner.configs.shell.words import RefusedError, Value, Words, line_of, source

if TYPE_CHECKING:
    from tree_sitter import Node

# What launch scripts stay far below: statements in all, calls inside calls, and characters of a variable.
MOST_STATEMENTS: Final = 20_000
MOST_CALLS: Final = 20
MOST_CHARACTERS: Final = 2**16

# `NAME=<what to write here>`: a blank that somebody is to fill in, which to a shell is no assignment.
_BLANKS: Final = re.compile(r"(?m)^(\s*(?:export\s+)?\w+=)(<[A-Za-z_][^<>|;&'\n]*>)(?=\s*$)")


def evaluate(
    text: str,
    arguments: Iterable[str | Text] = (),
    environment: Mapping[str, str | Text] | None = None,
    probes: Mapping[str, bool] | None = None,
    wanted: Callable[[Command], bool] = lambda _: False,
) -> Evaluated:
    """Return what a script would do.

    Args:
        text: The script.
        arguments: Its `$1`, `$2`, ...
        environment: Variables that are set before it starts.
        probes: Whether a command succeeds that has such words in it; others are not known.
        wanted: Whether a command is what the script is read for: of two branches between which only a run would
            decide, the one that starts such a command is taken.
    """
    import tree_sitter_bash  # noqa: PLC0415 -- only where a script is read
    from tree_sitter import Language, Parser  # noqa: PLC0415

    parser = Parser(Language(tree_sitter_bash.language()))

    def parse(text: str) -> "Node":
        return parser.parse(text.encode()).root_node

    variables: dict[str, Value] = {name: _text(each) for name, each in (environment or {}).items()}
    script = _Script(variables, tuple(map(_text, arguments)), dict(probes or {}), wanted, parse)
    try:
        script.block(parse(_BLANKS.sub(r"\1'\2'", text)).children)
    except RefusedError as error:
        script.found.refusal = (error.line, error.message)
    except RecursionError:
        script.found.refusal = (1, "is nested too deeply")
    except ExitError:
        pass
    for name in script.exports:
        value = script.words.variables.get(name)
        if isinstance(value, Text):
            script.found.exported[name] = value
    return script.found


def _at_line(command: Command, line: int) -> Command:
    """Return a command as one that is written on that line."""
    words = tuple(replace(word, line=line) for word in command.words)
    return replace(command, line=line, words=words)


def _text(given: str | Text) -> Text:
    return Text(given) if isinstance(given, str) else given


# What comes of a statement whose parts are not all there: where a script is broken off, or is none.
_SHAPES: Final = (AssertionError, AttributeError, IndexError, StopIteration, ValueError)


class _Script(Branches):
    """Play a script."""

    def __init__(
        self,
        variables: dict[str, Value],
        arguments: tuple[Text, ...],
        probes: dict[str, bool],
        wanted: Callable[[Command], bool],
        parse: Callable[[str], "Node"],
    ) -> None:
        super().__init__(probes, wanted)
        self.words = Words(variables, arguments, self._substituted, parse)
        self._parse = parse
        self._statements = self._calls = 0

    def block(self, nodes: Iterable["Node"]) -> Truth:
        """Play statements; return whether the last one succeeds."""
        truth: Truth = True
        for node in nodes:
            if node.is_named and node.type != "comment":
                truth = self.play(node)
        return truth

    def play(self, node: "Node") -> Truth:
        """Play one statement; return whether it succeeds, None where that is not known."""
        players: dict[str, Callable[[Node], Truth]] = {
            "variable_assignment": self._assign,
            "variable_assignments": self._inside,
            "declaration_command": self._declare,
            "unset_command": self._unset,
            "command": self._command,
            "test_command": lambda test: truth_of(test, self.words),
            "list": self._list,
            "pipeline": self._inside,
            "negated_command": lambda node: inverse(self._inside(node)),
            "redirected_statement": self._redirected,
            "compound_statement": self._compound,
            "subshell": self._subshell,
            "if_statement": self._if,
            "case_statement": self._case,
            "for_statement": self._for,
            "while_statement": self._while,
            "function_definition": self._define,
        }
        self._statements += 1
        if self._statements > MOST_STATEMENTS:
            raise RefusedError(line_of(node), f"does more than {MOST_STATEMENTS:,} statements")
        player = players.get(node.type)
        if player is not None:
            try:
                return player(node)
            except _SHAPES:
                if not node.has_error:
                    raise
                self._leave_out(node, "is not understood", [node])
                return None
        if node.type not in {
            "heredoc_body",
            "heredoc_redirect",
            "file_redirect",
            "herestring_redirect",
        }:
            self._leave_out(node, f"{node.type.replace('_', ' ')} is not evaluated", [node])
        return None

    def _redirected(self, node: "Node") -> Truth:
        """Play what is redirected; what goes to the error stream explains a stop, and is printed nowhere."""
        body = node.child_by_field_name("body")
        if body is None:
            return True
        to_errors = any(">&2" in source(part).replace(" ", "") for part in node.children[1:])
        if not to_errors:
            return self.play(body)
        kept, self._printed = self._printed, []
        truth = self.play(body)
        self._said = joined(self._printed, " ", 0).value.strip() or self._said
        self._printed = kept
        return truth

    def _compound(self, node: "Node") -> Truth:
        if node.children and node.children[0].type == "((":
            inner = [part for part in node.children if part.is_named]
            return number_is_true(inner[0], self.words) if inner else None
        return self._inside(node)

    def _subshell(self, node: "Node") -> Truth:
        kept = dict(self.words.variables)
        try:
            return self._inside(node)
        finally:
            self.words.variables.clear()
            self.words.variables.update(kept)

    def _list(self, node: "Node") -> Truth:
        left, sign, right = (part for part in node.children if part.type != "comment")
        first = self.play(left)
        goes_on = first if sign.type == "&&" else inverse(first)
        if goes_on is None:
            self._leave_out(right, f"it is not known whether `{short(left)}` succeeds", [right])
            return None
        if not goes_on:
            return first
        second = self.play(right)
        return both(first, second) if sign.type == "&&" else either(first, second)

    def _assign(self, node: "Node") -> Truth:
        name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        assert name_node is not None
        name = source(name_node)
        adds = any(part.type == "+=" for part in node.children)
        variables = self.words.variables
        if name_node.type == "subscript":
            name = name.partition("[")[0]
            adds = True  # an item of its own: as good as one more
        if value_node is not None and value_node.type == "array":
            items = tuple(
                word
                for part in value_node.children
                if part.is_named and part.type != "comment"
                for word in self.words.fields(part)
            )
            before = variables.get(name, ()) if adds else ()
            variables[name] = (*((before,) if isinstance(before, Text) else before), *items)
            self._check_size(node, name)
            return True
        text = self.words.text(value_node) if value_node is not None else Text("", line_of(node))
        held = variables.get(name) if adds else None
        if isinstance(held, tuple):
            variables[name] = (*held, text)
        else:
            variables[name] = text if held is None else held + text
        self._check_size(node, name)
        return None if any("$(" in gap.source for gap in text.gaps) else True

    def _check_size(self, node: "Node", name: str) -> None:
        """Refuse a variable that outgrows what a launch script would hold: characters, or an array's words."""
        value = self.words.variables[name]
        size = len(value.value) if isinstance(value, Text) else len(value)
        if size > MOST_CHARACTERS:
            raise RefusedError(line_of(node), f"{name} grows beyond {MOST_CHARACTERS:,} characters")

    def _declare(self, node: "Node") -> Truth:
        exports = source(node.children[0]) == "export"
        for part in node.children:
            named = part.child_by_field_name("name")
            if part.type == "variable_assignment":
                self._assign(part)
            if exports and (named is not None or part.type == "variable_name"):
                self.exports.add(source(named or part))
        return True

    def _unset(self, node: "Node") -> Truth:
        for part in node.children:
            if part.is_named:
                self.words.variables.pop(source(part), None)
        return True

    def _define(self, node: "Node") -> Truth:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        assert name is not None
        assert body is not None
        self._functions[source(name)] = body
        return True

    def _command(self, node: "Node") -> Truth:
        parts = [part for part in node.children if part.is_named and "redirect" not in part.type]
        named = [part for part in parts if part.type != "variable_assignment"]
        if not named:
            return self._inside(node)
        words = [word for part in named for word in self.words.fields(part)]
        if not words:
            return True
        name = words[0].value
        if name in self._functions:
            return self._call(self._functions[name], words[1:])
        if name == "eval":
            return self._eval(joined(words[1:], " ", line_of(node)), node)
        return self.named(name, words, node)

    def _eval(self, text: Text, node: "Node") -> Truth:
        """Play a text as statements."""
        if any(gap.source in text.value for gap in text.gaps):
            self._leave_out(node, "is not followed", [node])
            return None
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise RefusedError(line_of(node), f"evaluates texts {MOST_CALLS} deep")
        before = len(self.found.commands)
        try:
            return self.block(self._parse(text.value).children)
        finally:
            self._calls -= 1
            started = self.found.commands[before:]
            self.found.commands[before:] = [_at_line(each, line_of(node)) for each in started]

    def _call(self, body: "Node", arguments: list[Text]) -> Truth:
        kept, self.words.arguments = self.words.arguments, tuple(arguments)
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise RefusedError(
                line_of(body), f"has functions that call each other {MOST_CALLS} deep"
            )
        try:
            return self.play(body)
        except ReturnError:
            return True
        finally:
            self.words.arguments = kept
            self._calls -= 1

    def _substituted(self, node: "Node") -> Text:
        """Return what `$(...)` prints."""
        kept, self._printed = self._printed, []
        commands, gaps = len(self.found.commands), len(self.found.gaps)
        with suppress(ExitError):
            self._inside(node)
        printed, self._printed = self._printed, kept
        del self.found.commands[commands:]
        undecided = self.found.gaps[gaps:]
        del self.found.gaps[gaps:]
        if undecided or not printed:
            gap = Gap(line=line_of(node), source=short(node), reason="it is not run")
            return Text("$(...)", line_of(node), (gap,))
        return joined(printed, "\n", line_of(node))
