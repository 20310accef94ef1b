"""What decides which of a script's statements are played, and how often: conditions, cases and loops."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from planner.configs.shell.commands import Commands, RoundError, short
from planner.configs.shell.conditions import Truth, inverse
from planner.configs.shell.text import Text
from planner.configs.shell.words import source

if TYPE_CHECKING:
    from tree_sitter import Node

# Rounds of a loop over words, which launch scripts stay far below.
MOST_ROUNDS: Final = 1000
# Rounds of a loop that no list counts, such as one over arguments; one that waits for something has no end here.
MOST_UNCOUNTED: Final = 100


class Branches(Commands, ABC):
    """Play conditions, cases and loops; what only a run would decide is left out."""

    @abstractmethod
    def block(self, nodes: Iterable["Node"]) -> Truth:
        """Play statements; return whether the last one succeeds."""

    def _inside(self, node: "Node") -> Truth:
        return self.block(node.children)

    def _if(self, node: "Node") -> Truth:
        """Play the first branch whose condition is true."""
        condition: Truth = None
        tests: list[Node] = []
        branch: list[Node] = []
        in_test = False
        for part in node.children:
            if part.type == "if":
                in_test = True
            elif part.type == "then":
                condition, in_test = self.block(tests), False
            elif part.type in {"elif_clause", "else_clause", "fi"}:
                if condition is not False:
                    break
                if part.type == "elif_clause":
                    return self._elif(part, node)
                return self._inside(part)
            elif part.is_named:
                (tests if in_test else branch).append(part)
        return self._branch(condition, tests, branch, node)

    def _elif(self, clause: "Node", node: "Node") -> Truth:
        """Play an `elif`, and what follows it where it is false."""
        at_then = next(at for at, part in enumerate(clause.children) if part.type == "then")
        tests = [part for part in clause.children[:at_then] if part.is_named]
        condition = self.block(tests)
        if condition is not False:
            branch = [part for part in clause.children[at_then:] if part.is_named]
            return self._branch(condition, tests, branch, node)
        later = [part for part in node.children if part.start_byte >= clause.end_byte]
        following = next(
            (part for part in later if part.type in {"elif_clause", "else_clause"}), None
        )
        if following is None:
            return True
        return (
            self._elif(following, node)
            if following.type == "elif_clause"
            else self._inside(following)
        )

    def _branch(
        self, condition: Truth, tests: list["Node"], branch: list["Node"], node: "Node"
    ) -> Truth:
        if condition:
            return self.block(branch)
        if condition is None:
            text = "; ".join(map(short, tests))
            self._leave_out(node, f"it is not known whether `{text}`", [node])
        return condition

    def _case(self, node: "Node") -> Truth:
        value_node = node.child_by_field_name("value")
        assert value_node is not None
        value = self.words.text(value_node)
        if value.gaps:
            self._leave_out(node, f"{source(value_node)} is not known", [node])
            return None
        for item in node.children:
            if item.type != "case_item":
                continue
            at = next(at for at, part in enumerate(item.children) if part.type == ")")
            patterns = [part for part in item.children[:at] if part.is_named]
            if any(self._fits(value, pattern) for pattern in patterns):
                return self.block(item.children[at + 1 :])
        return True

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
            del found.commands[commands:]
            self._leave_out(node, "it is not known how often it goes round", [node])
            return None
        return True

    def _leave_out(self, node: "Node", reason: str, parts: list["Node"]) -> None:
        """Leave statements out; what they would assign is not known any more."""
        self.note(node, reason)
        gap = self.found.gaps[-1]
        for name in {name for part in parts for name in _assigned(part)}:
            self.words.variables[name] = Text(f"${name}", gap.line, (gap,))


def _assigned(node: "Node") -> set[str]:
    """Return the variables that statements would assign."""
    found = set()
    if node.type == "variable_assignment":
        name = node.child_by_field_name("name")
        found.add(source(name).partition("[")[0] if name is not None else "")
    for part in node.children:
        found |= _assigned(part)
    return found
