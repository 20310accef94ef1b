"""What a Python program changes of mappings and objects after it has made them, by whatever name it knows them."""

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from rlplan.planner.configs.reading.python.syntax import (
    ANY_ATTRIBUTE,
    TOP,
    Function,
    Place,
    attributes_held_by,
    defaults_of,
    dotted,
    given_by,
    names_in,
    root_of,
    written,
)
from rlplan.planner.configs.reading.python.values import (
    Expressions,
    Scoped,
    Unknown,
    UnknownValueError,
    constant_of,
)

DEPENDS: Final = "depends on what is known where it runs"
CHANGED: Final = "is changed after it is set"
# What sets a name: the function in which it means that, by identity (0 for the module), and the name.
Home = tuple[int, str]
# Names behind names, and functions that call one another, through which a change is followed.
MOST_STEPS: Final = 5

Conditions = tuple[tuple[ast.expr, bool], ...]
# What is set of objects: an attribute and its value.
Sets = dict[Home, list[tuple[str, ast.expr]]]


class Changing(Scoped):
    """Compute what names hold behind what the program changes.

    Attributes:
        constants: Expressions that names are set to, by name, with all that set it.
        attributes: What is set of names' attributes: name, attribute and value.
        changes: What changes mappings after they are made, by where a name means them and the name.
        functions: Its functions, by name; None is not known.
        sites: All calls, by what is called.
        held: On which conditions a part runs, each with whether it is to be true, by the part's identity.
        places: Where parts stand, by their identity.
        outer: Names that functions declare as `global` or `nonlocal`.
        local: Names that functions have of their own.
    """

    constants: dict[str, list[ast.AST]]
    attributes: list[tuple[str, str, ast.expr]]
    changes: dict[Home, list[ast.AST]]
    functions: dict[str, Function | None]
    sites: dict[str, list[ast.Call]]
    held: dict[int, Conditions]
    places: dict[int, Place]
    outer: set[Home]
    local: set[Home]

    def changed_elsewhere(self, call: ast.Call) -> Iterator[tuple[str, bool]]:
        """Return the names that a call gives to a function of another module which changes them: none are known here.

        Each with whether it sets attributes.
        """
        del call
        return iter(())

    def note_names(self, node: ast.AST) -> None:
        """Note which names are local to a function, and which it declares `global` or `nonlocal`."""
        inside = self.places.get(id(node), TOP).function
        if isinstance(node, ast.Global | ast.Nonlocal):
            self.outer |= {(inside, name) for name in node.names}
        if isinstance(node, Function):
            self.local |= {(id(node), name) for name in defaults_of(node)}

    def home_of(self, name: str, function: int) -> Home:
        """Return where a name means what it means in a function: there, in one around it, or in the module."""
        seen = set[int]()
        while function and function not in seen:
            if (function, name) in self.local:
                return function, name
            seen.add(function)
            function = self.places.get(function, TOP).function
        return 0, name

    def home_at(self, name: str, node: ast.AST) -> Home:
        """Return where a name means what it means at a part of the program."""
        return self.home_of(name, self.places.get(id(node), TOP).function)

    def follow_names(self, changes: Sequence[tuple[str, ast.AST]]) -> None:
        """Note changes under all names of what they change: second names, wholes of parts, and what calls are given.

        Args:
            changes: What changes a mapping, by the name in it.
        """
        self.local |= {
            (self.places.get(id(each), TOP).function, name)
            for name, values in self.constants.items()
            for each in values
        }
        self.local -= {*self.outer, *((0, name) for name in self.constants)}
        for name, change in changes:
            self.changes.setdefault(self.home_at(name, change), []).append(change)
        sets: Sets = {}
        for holder, attribute, value in self.attributes:
            sets.setdefault(self.home_at(holder, value), []).append((attribute, value))
        self._note_elsewhere(sets)
        edges = [Edge(*each) for each in (*self._second_names(), *self._given_away())]
        noted = NotedChanges(
            {home: {*map(id, each)} for home, each in self.changes.items()},
            {home: {id(value) for _, value in each} for home, each in sets.items()},
        )
        for _ in range(MOST_STEPS):
            for edge in edges:
                self._pass_on(sets, edge, noted)
        self._take_views(sets)
        known = {(name, attribute, id(value)) for name, attribute, value in self.attributes}
        for (_, name), found in sets.items():
            more = ((name, *each) for each in found if (name, each[0], id(each[1])) not in known)
            self.attributes.extend(more)
        self.attributes.sort(key=lambda each: getattr(each[2], "lineno", 0))

    def _pass_on(self, sets: Sets, edge: "Edge", noted: "NotedChanges") -> None:
        """Note under one name what is changed under another, as far as it is new since the last time."""
        changes, values = self.changes.get(edge.source, ()), sets.get(edge.source, ())
        new_changes, new_values = changes[edge.changes :], values[edge.values :]
        edge.changes, edge.values = len(changes), len(values)
        for change in new_changes:
            new = edge.link.change(change)
            if new is not None and noted.is_new(noted.changes, edge.target, new):
                self.changes.setdefault(edge.target, []).append(new)
        for attribute, value in new_values:
            set_to = edge.link.value(value)
            if set_to is not None and noted.is_new(noted.values, edge.target, set_to):
                sets.setdefault(edge.target, []).append((attribute, set_to))

    def _note_elsewhere(self, sets: Sets) -> None:
        """Note what functions of other modules change of what they are given."""
        for name, sites in self.sites.items():
            for site in sites if self.functions.get(name) is None else ():
                for given, is_set in self.changed_elsewhere(site):
                    home = self.home_at(given, site)
                    self.changes.setdefault(home, []).append(site)
                    if is_set:
                        sets.setdefault(home, []).append((ANY_ATTRIBUTE, site))

    def _second_names(self) -> Iterator[tuple[Home, Home, "Link"]]:
        """Yield by what changes pass between a name and another one that is set to it, or to a part of it."""
        made = dict[int, ast.AST]()
        for name, values in self.constants.items():
            for value in values:
                root = root_of(value)
                if root is None or root == name:
                    continue
                own, other = self.home_at(name, value), self.home_at(root, value)
                if isinstance(value, ast.Name):
                    yield own, other, Link()
                    yield other, own, Link()
                else:
                    yield own, other, PartOf(made, is_whole=False)
                    yield other, own, PartOf(made, is_whole=True)

    def _given_away(self) -> Iterator[tuple[Home, Home, "Link"]]:
        """Yield by what changes pass from a function's parameter to what a call gives for it."""
        for name, sites in self.sites.items():
            function = self.functions.get(name)
            if function is None:
                continue
            for site in sites:
                for parameter, value in given_by(site, function).items():
                    root = root_of(value)
                    if root is not None:
                        link = GivenTo(self, site, function)
                        yield (id(function), parameter), self.home_at(root, site), link

    def _take_views(self, sets: Sets) -> None:
        """Note of objects that something is set of them, where a name stands for all of their attributes and is changed."""
        for name, values in self.constants.items():
            for value in values:
                holder = attributes_held_by(value)
                changed = self.changes.get(self.home_at(name, value))
                if isinstance(holder, ast.Name) and changed and isinstance(value, ast.expr):
                    home = self.home_at(holder.id, value)
                    sets.setdefault(home, []).append((ANY_ATTRIBUTE, value))

    def check_any(self, holder: str, running: Sequence[ast.expr]) -> None:
        """Refuse an attribute where any may be set.

        Raises:
            UnknownValueError: Something that runs sets attributes by names that are no constants.
        """
        for each, attribute, value in self.attributes:
            if (each, attribute) == (holder, ANY_ATTRIBUTE) and any(value is it for it in running):
                raise UnknownValueError(f"may be set by {written(value)}")

    def runs(self, node: ast.AST, depth: int = 0) -> bool | None:
        """Return whether a part of the program runs; None where a condition of it is not known."""
        met: bool | None = True
        for test, wanted in self.held.get(id(node), ()):
            try:
                if bool(self.value(test, depth + 1)) != wanted:
                    return False
            except UnknownValueError:
                met = None
        return met

    def set_near(self, node: ast.Name) -> list[ast.AST]:
        """Return what sets a name: in the function where it is asked for, else outside of all, else anywhere."""
        values = self.constants.get(node.id, [])
        function = self.places.get(id(node), TOP).function
        homes = [(each, self.places.get(id(each), TOP).function) for each in values]
        placed = [(each, 0 if (home, node.id) in self.outer else home) for each, home in homes]
        own = [each for each, home in placed if home == function]
        return own or [each for each, home in placed if home == 0] or values

    def changed(self, node: ast.Name, held: Any) -> Any:  # noqa: ANN401
        """Return what a name holds behind the changes that the program makes to its items above.

        Raises:
            UnknownValueError: It is not known what they are.
        """
        place = self.places.get(id(node), TOP)
        changes = self.changes.get(self.home_of(node.id, place.function), ())
        if not changes:
            return held
        if not isinstance(held, dict):
            grows = any(isinstance(each, ast.AugAssign) for each in changes)
            changes = changes if isinstance(held, list) or grows else ()
        near = []
        for each in changes:
            there = self.places.get(id(each), TOP)
            if there.function != place.function or there.repeats or not hasattr(node, "lineno"):
                raise UnknownValueError(CHANGED)
            if each.lineno < node.lineno:  # type: ignore[attr-defined]
                near.append((each, self.runs(each)))
        if isinstance(held, dict):
            return changed_mapping(self, held, near)
        if any(runs is not False for _, runs in near):
            raise UnknownValueError(CHANGED)
        return held

    def changed_outside(self, node: ast.Name, held: Any) -> Any:  # noqa: ANN401
        """Return what a parameter holds that is called as what it is given, behind changes of that above the call.

        Raises:
            UnknownValueError: It is not known what they are.
        """
        function = self.places.get(id(node), TOP).function
        own = self.home_of(node.id, function)
        homes = {self.home_at(node.id, each) for each in self.set_near(node)} - {own}
        sites = self._sites_above(function) if function and homes else {}
        near = []
        for home in homes if sites else ():
            calls = [each.lineno for each in sites.values() if self._stands_in(each, home[0])]
            for each in self.changes.get(home, ()):
                is_near = self._stands_in(each, home[0])
                late = is_near and calls and each.lineno > max(calls)  # type: ignore[attr-defined]
                counts = isinstance(held, dict | list) or isinstance(each, ast.AugAssign)
                if id(each) in sites or late or not counts:
                    continue
                if (
                    not is_near
                    or self.places.get(id(each), TOP).repeats
                    or not isinstance(held, dict)
                ):
                    raise UnknownValueError(CHANGED)
                near.append((each, self.runs(each)))
        return changed_mapping(self, held, near) if near else held

    def _stands_in(self, node: ast.AST, function: int) -> bool:
        return self.places.get(id(node), TOP).function == function

    def _sites_above(self, function: int) -> dict[int, ast.Call]:
        """Return the calls that lead to a function, by their identity."""
        found, waiting, seen = dict[int, ast.Call](), [function], set[int]()
        while waiting:
            inner = waiting.pop()
            names = (each for each, node in self.functions.items() if id(node) == inner)
            for site in (
                () if inner in seen else chain(*(self.sites.get(each, ()) for each in names))
            ):
                found[id(site)] = site
                waiting.append(self.places.get(id(site), TOP).function)
            seen.add(inner)
        return found


class Link:
    """Say what a change under one name is under another: the same."""

    def change(self, change: ast.AST) -> ast.AST | None:
        """Return what stands for a change of a mapping; None where it is none there."""
        return change

    def value(self, value: ast.expr) -> ast.expr | None:
        """Return what stands for what an attribute is set to; None where nothing is set there."""
        return value


@dataclass(slots=True)
class Edge:
    """Hold by what changes pass from one name to another, and how many of them have.

    Attributes:
        changes: Of mappings.
        values: Of what attributes are set to.
    """

    source: Home
    target: Home
    link: Link
    changes: int = 0
    values: int = 0


@dataclass(frozen=True, slots=True)
class NotedChanges:
    """Hold which changes are noted under which name, by their identity.

    Attributes:
        changes: Of mappings.
        values: What attributes are set to.
    """

    changes: dict[Home, set[int]]
    values: dict[Home, set[int]]

    @staticmethod
    def is_new(held: dict[Home, set[int]], home: Home, node: ast.AST) -> bool:
        """Tell whether something is not noted yet, and note it."""
        there = held.setdefault(home, set())
        before = len(there)
        there.add(id(node))
        return len(there) > before


class PartOf(Link):
    """Pass a change of a part on to its whole, with an unknown effect, and a change inside a whole on to its parts."""

    def __init__(self, made: dict[int, ast.AST], *, is_whole: bool) -> None:
        self.is_whole, self.made = is_whole, made

    def change(self, change: ast.AST) -> ast.AST | None:
        """Return a change of which only is known that there is one; a whole's entry leaves its parts as they are.

        It is one for all names, or every name that leads back to the first would add others without end.
        """
        if isinstance(change, _Unfollowed):
            return change
        if self.is_whole and not _is_deep(change):
            return None
        unfollowed = ast.copy_location(_Unfollowed(value=ast.Constant(value=None)), change)
        return self.made.setdefault(id(change), unfollowed)

    def value(self, value: ast.expr) -> ast.expr | None:
        """Return none: attributes of parts are changes of entries."""


class GivenTo(Link):
    """Pass a change of a parameter on to the argument: the call changes it, and attributes are set where the call stands."""

    def __init__(self, program: Changing, site: ast.Call, function: Function) -> None:
        self.program, self.site = program, site
        self.own = {name for home, name in program.local if home == id(function)}
        self.made = dict[int, ast.expr]()

    def change(self, change: ast.AST) -> ast.AST | None:
        """Return the call."""
        del change
        return self.site

    def value(self, value: ast.expr) -> ast.expr | None:
        """Return a value as it is where the call stands: not known where it is of the function's own names."""
        if id(value) in self.made:
            return self.made[id(value)]
        program = self.program
        new: ast.expr = copy.copy(value)
        outside, inside = (program.held.get(id(each), ()) for each in (self.site, value))
        conditions = (*outside, *inside)
        asked = [*names_in(value), *(name for test, _ in inside for name in names_in(test))]
        if self.own & {*asked}:
            new, conditions = self._unknown(), outside
        ast.copy_location(new, self.site)
        program.held[id(new)] = conditions
        program.places[id(new)] = program.places.get(id(self.site), TOP)
        self.made[id(value)] = new
        return new

    def _unknown(self) -> ast.expr:
        reason = f"is set by {dotted(self.site.func)}"
        return constant_of(Unknown(reason, written(self.site)))


class _Unfollowed(ast.Expr):
    """Stand for a change of which only is known that there is one."""


def _is_deep(change: ast.AST) -> bool:
    """Tell whether a change is one of an entry's entries."""
    if isinstance(change, ast.Assign | ast.Delete):
        held: Any = change.targets[0]
    elif isinstance(change, ast.AugAssign | ast.AnnAssign):
        held = change.target
    else:
        held = change.func if isinstance(change, ast.Call) else None
    return isinstance(held, ast.Subscript | ast.Attribute) and not isinstance(held.value, ast.Name)


def changed_mapping(
    values: Expressions,
    held: Mapping[str, Any],
    changes: Sequence[tuple[ast.AST, bool | None]],
) -> dict[str, Any]:
    """Return a mapping behind changes of it, in their order.

    Args:
        changes: Each with whether it takes place; None is not known.

    Raises:
        UnknownValueError: It is not known what one changes.
    """
    found = dict(held)
    ordered = sorted(changes, key=lambda each: each[0].lineno)  # type: ignore[attr-defined]
    for node, runs in ordered:
        if runs is False:
            continue
        for key, value in _entries_of_change(values, node, found).items():
            found[key] = value if runs else Unknown(DEPENDS, key)
    return found


def _entries_of_change(
    values: Expressions, node: ast.AST, held: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the entries that a change sets.

    Raises:
        UnknownValueError: It does something else.
    """
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            return {str(values.value(target.slice)): values.entry(node.value, 0)}
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            return {target.attr: values.entry(node.value, 0)}
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return values.mapping_of(node.value, 0)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        if name == "update" and isinstance(node.func.value, ast.Name):
            return given_to_update(values, node)
        if name == "setdefault" and isinstance(node.func.value, ast.Name) and len(node.args) > 1:
            key = str(values.value(node.args[0]))
            return {} if key in held else {key: values.entry(node.args[1], 0)}
    raise UnknownValueError(CHANGED)


def given_to_update(values: Expressions, node: ast.Call) -> dict[str, Any]:
    """Return the entries that `update` is given.

    Raises:
        UnknownValueError: A mapping among them is not known.
    """
    given = dict[str, Any]()
    for each in node.args:
        given |= values.mapping_of(each, 0)
    for word in node.keywords:
        if word.arg is None:
            given |= values.mapping_of(word.value, 0)
        else:
            given[word.arg] = values.entry(word.value, 0)
    return given
