"""What decides which of a script's statements are played, and how often: conditions, cases and loops."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Final

from rlplan.planner.configs.shell.commands import (
    Command,
    Commands,
    ExitError,
    ReturnError,
    RoundError,
    State,
    short,
)
from rlplan.planner.configs.shell.conditions import Truth, inverse, number_is_true, truth_of
from rlplan.planner.configs.shell.text import OF_THE_RUN, Gap, Text
from rlplan.planner.configs.shell.words import RefusedError, line_of, lines_of, source

if TYPE_CHECKING:
    from tree_sitter import Node

# Rounds of a loop over words, which launch scripts stay far below.
MOST_ROUNDS: Final = 1000
# Rounds of a loop that no list counts, such as one over arguments; one that waits for something has no end here.
MOST_UNCOUNTED: Final = 100


# A test of whether a variable is empty.
_EMPTY: Final = re.compile(r"-z\s+\"?\$\{?(\w+)(?::?-)?\}?\"?\s")
# Lists of which it is asked whether they have nothing: `[[ "${#NAME[@]}" -eq 0 ]]`.
_COUNTED: Final = re.compile(
    r"\$\{#(\w+)(?:\[[@*]\])?\}\"?\s+(?:-eq\s+0|-lt\s+1|-le\s+0|==?\s+\"?0)\b"
)

# The variables of a condition.
_USED: Final = re.compile(r"\$\{?(\w+)")

# What of a condition asks for the script's arguments.
_ARGUMENTS: Final = re.compile(r"\$(#|\{?[1-9]\b|\{#[@*]?\})")

# Statements of a condition (of `else` none), and those that are played where it is true.
Clause = tuple[list["Node"] | None, list["Node"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Hold what comes of a branch.

    Attributes:
        left: How it leaves the script, a function or a loop; None where it goes on behind it.
        started: What it starts of what is looked for.
        state: What the script has come to by then.
    """

    truth: Truth
    left: Exception | None
    started: tuple[Command, ...]
    state: State

    @property
    def starts(self) -> bool:
        """Return whether it starts what is looked for."""
        return bool(self.started)


class Branches(Commands, ABC):
    """Play conditions, cases and loops; what only a run would decide is left out."""

    @abstractmethod
    def block(self, nodes: Iterable["Node"]) -> Truth:
        """Play statements; return whether the last one succeeds."""

    def _inside(self, node: "Node") -> Truth:
        return self.block(node.children)

    def _if(self, node: "Node") -> Truth:
        """Play the first branch whose condition is true."""
        later = [part for part in node.children if part.type in {"elif_clause", "else_clause"}]
        first = [part for part in node.children if part not in later]
        return self._first_true(
            [_clause(part) for part in (first, *(c.children for c in later))], node
        )

    def _first_true(self, clauses: Sequence["Clause"], node: "Node") -> Truth:
        """Play the first of some branches whose condition is true."""
        if not clauses:
            return True
        (tests, branch), *others = clauses
        condition = self.block(tests) if tests is not None else True
        if condition is None:
            assert tests is not None
            return self._undecided(tests, branch, others, node)
        if condition and tests is not None and self._asks_for_what_is_not_given(tests):
            return self._read_on(tests, branch, others, node)
        if condition:
            return self.block(branch)
        self.pass_over(branch)
        return self._first_true(others, node)

    def pass_over(self, nodes: Iterable["Node"]) -> None:
        """Leave out lines of statements that are not played, where others of the same lines are."""
        if self.found.played is not None:
            for node in nodes:
                self.found.played.difference_update(lines_of(node))

    def _read_on(
        self, tests: list["Node"], branch: list["Node"], others: Sequence["Clause"], node: "Node"
    ) -> Truth:
        """Play a branch for what is not given; where the script would stop for it, read on without it.

        It is given where it runs, or it would say so there.
        """
        ending = self._tried(lambda: self.block(branch))
        if not isinstance(ending.left, RefusedError) or ending.starts:
            return self._kept(ending)
        self.note(node, f"it stops here: {ending.left.message}")
        for name in self._empty_names(tests):
            if getattr(self.words.variables.get(name), "gaps", ()):
                continue
            gap = Gap(
                line=line_of(node), source=f"${name}", reason=f"{name} is not set", unset=True
            )
            self.words.variables[name] = Text(f"${name}", line_of(node), (gap,))
        return self._first_true(others, node)

    def _asks_for_what_is_not_given(self, tests: list["Node"]) -> bool:
        """Return whether a condition is true since a variable is empty, a list has nothing, or an argument is not given."""
        of_arguments = any(_ARGUMENTS.search(source(test)) for test in tests)
        counted = {name for test in tests for name in _COUNTED.findall(source(test))}
        unset = bool(self._empty_names(tests)) or bool(counted - self.words.variables.keys())
        return unset or (of_arguments and not self.words.arguments)

    def _empty_names(self, tests: list["Node"]) -> list[str]:
        """Return the variables of which `[ -z "$NAME" ]` is true since they have an empty default, there or before."""
        found = []
        for name in _asked_for(tests):
            value = self.words.variables.get(name, Text(""))
            if isinstance(value, Text) and not value.with_empty(Gap.is_argument).value:
                found.append(name)
        return found

    def _undecided(
        self,
        tests: list["Node"],
        branch: list["Node"],
        others: Sequence["Clause"],
        node: "Node",
    ) -> Truth:
        """Play one of two branches whose condition is not known.

        The branch that starts what is looked for is taken (either, if both start it alike); else the one that a shell
        takes with no further variables set, unless the script ends there; else none.
        """
        taken = self._tried(lambda: self.block(branch))
        passed = self._tried(lambda: self._first_true(others, node))
        if taken.starts != passed.starts:
            return self._kept(taken if taken.starts else passed)
        usual = self._if_unset(tests)
        if taken.starts and _are_one(taken.started, passed.started):
            return self._kept(passed if usual is False else taken)
        ending = taken if usual else passed
        if usual is not None and ending.left is None:
            return self._kept(ending)
        text = "; ".join(map(short, tests))
        where = f", which {OF_THE_RUN}" if self._asks_for_the_machine(tests) else ""
        self._leave_out(node, f"it is not known whether `{text}`{where}", [node])
        return None

    def _asks_for_the_machine(self, tests: Sequence["Node"]) -> bool:
        """Return whether a condition is not known since what it asks for is known only where the script runs."""
        names = {name for test in tests for name in _USED.findall(source(test))}
        values = (self.words.variables.get(name) for name in names)
        gaps = (gap for value in values if isinstance(value, Text) for gap in value.gaps)
        return any(gap.reason.endswith(OF_THE_RUN) for gap in gaps)

    def _if_unset(self, tests: list["Node"]) -> Truth:
        """Return what a test says where variables are empty that nothing sets."""
        if len(tests) != 1 or tests[0].type != "test_command":
            return None
        return truth_of(tests[0], self.words, if_unset=True)

    def _tried(self, play: Callable[[], Truth]) -> "Ending":
        """Play something, take back what it does, and return it."""
        before = self._state()
        truth: Truth = None
        left: Exception | None = None
        try:
            truth = play()
        except (ExitError, ReturnError, RoundError, RefusedError) as error:
            left = error
        after = self._state()
        self._put(before)
        started = tuple(filter(self._wanted, after.commands[len(before.commands) :]))
        return Ending(truth=truth, left=left, started=started, state=after)

    def _kept(self, ending: "Ending") -> Truth:
        """Do what was tried."""
        self._put(ending.state)
        if ending.left is not None:
            raise ending.left
        return ending.truth

    def _case(self, node: "Node") -> Truth:
        value_node = node.child_by_field_name("value")
        assert value_node is not None
        value = self.words.text(value_node).with_empty(Gap.is_argument)
        items = [_case_of(item) for item in node.children if item.type == "case_item"]
        if value.gaps:
            return self._unknown_case(value_node, [body for _, body in items], node)
        for patterns, body in items:
            if any(self._fits(value, pattern) for pattern in patterns):
                return self.block(body)
        return True

    def _unknown_case(self, value: "Node", bodies: Sequence[list["Node"]], node: "Node") -> Truth:
        """Play the only branch that starts what is looked for; else none."""
        endings = [self._tried(partial(self.block, body)) for body in bodies]
        starting = [each for each in endings if each.starts]
        if len(starting) == 1:
            return self._kept(starting[0])
        self._leave_out(node, f"{source(value)} is not known", [node])
        return None

    def _fits(self, value: Text, pattern: "Node") -> bool:
        return fnmatchcase(value.value, self.words.text(pattern).value)

    def _for(self, node: "Node") -> Truth:
        name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        assert name is not None
        assert body is not None
        between = [
            part
            for part in node.children
            if part.is_named and name.end_byte <= part.start_byte < body.start_byte
        ]
        items = [
            word for part in between if part.type != "comment" for word in self.words.fields(part)
        ]
        for item in items[:MOST_ROUNDS]:
            self.words.variables[source(name)] = item
            if self._is_last(body):
                break
        return True

    def _is_last(self, body: "Node") -> bool:
        """Play a round of a loop; return whether it leaves the loop."""
        self._loops += 1
        try:
            self._inside(body)
        except RoundError as left:
            return left.last
        finally:
            self._loops -= 1
        return False

    def _while(self, node: "Node") -> Truth:
        """Play a loop while, or until, its condition holds; one whose end is not known is left out."""
        body = node.child_by_field_name("body")
        assert body is not None
        tests = [
            part for part in node.children if part.is_named and part.end_byte <= body.start_byte
        ]
        found, waits = self.found, node.children[0].type == "until"
        commands, gaps = len(found.commands), len(found.gaps)
        for _ in range(MOST_UNCOUNTED):
            goes_on = inverse(self.block(tests)) if waits else self.block(tests)
            if goes_on is False:
                return True
            if goes_on is None or self._is_last(body) or len(found.gaps) > gaps:
                break
        else:
            goes_on = None
        if goes_on is None or len(found.gaps) > gaps:
            return self._without_end(node, commands)
        return True

    def _counted(self, node: "Node") -> Truth:
        """Play `for ((first; condition; step))`; one whose end is not known is left out."""
        parts: list[list[Node]] = [[]]
        for part in node.children:
            if part.type in {"((", "))", ";"}:
                parts.append([])
            elif part.is_named:
                parts[-1].append(part)
        _, first, tests, steps, *_ = parts
        body = node.child_by_field_name("body")
        assert body is not None
        commands, gaps = len(self.found.commands), len(self.found.gaps)
        for each in first:
            number_is_true(each, self.words)
        for _ in range(MOST_UNCOUNTED):
            goes_on = number_is_true(tests[-1], self.words) if tests else None
            if goes_on is False:
                return True
            if goes_on is None or self._is_last(body) or len(self.found.gaps) > gaps:
                break
            for each in steps:
                number_is_true(each, self.words)
        else:
            goes_on = None
        if goes_on is None or len(self.found.gaps) > gaps:
            return self._without_end(node, commands)
        return True

    def _without_end(self, node: "Node", commands: int) -> Truth:
        """Leave a loop out whose end is not known; a round that starts what is looked for stands for all."""
        if any(map(self._wanted, self.found.commands[commands:])):
            return None
        del self.found.commands[commands:]
        self._leave_out(node, "it is not known how often it goes round", [node])
        return None

    def _leave_out(self, node: "Node", reason: str, parts: list["Node"]) -> None:
        """Leave statements out; what they would assign is not known any more."""
        self.note(node, reason)
        gap = self.found.gaps[-1]
        for name in {name for part in parts for name in _assigned(part)}:
            self.words.variables[name] = Text(f"${name}", gap.line, (gap,))


def _case_of(item: "Node") -> tuple[list["Node"], list["Node"]]:
    """Return the patterns of a branch of `case`, and what is played where one fits."""
    at = next(at for at, part in enumerate(item.children) if part.type == ")")
    return [part for part in item.children[:at] if part.is_named], item.children[at + 1 :]


def _asked_for(tests: Sequence["Node"]) -> list[str]:
    """Return the variables of which a condition asks whether they are empty: `[ -z "$NAME" ]`."""
    return [name for test in tests for name in _EMPTY.findall(source(test))]


def _clause(parts: Sequence["Node"]) -> "Clause":
    """Return a clause of an `if`: its condition, and what is played where that is true."""
    at = next((at for at, part in enumerate(parts) if part.type == "then"), None)
    tests = None if at is None else [part for part in parts[:at] if part.is_named]
    return tests, [part for part in parts[at or 0 :] if part.is_named]


def _assigned(node: "Node") -> set[str]:
    """Return the variables that statements would assign."""
    found = set()
    if node.type == "variable_assignment":
        name = node.child_by_field_name("name")
        found.add(source(name).partition("[")[0] if name is not None else "")
    for part in node.children:
        found |= _assigned(part)
    return found


def _are_one(some: Sequence[Command], others: Sequence[Command]) -> bool:
    """Tell whether commands are alike but for what stands in front of them, as `stdbuf -oL` does."""
    if len(some) != len(others):
        return False
    for one, other in zip(some, others, strict=True):
        words = [[word.value for word in each.words] for each in (one, other)]
        least = min(map(len, words))
        if words[0][-least:] != words[1][-least:]:
            return False
    return True
