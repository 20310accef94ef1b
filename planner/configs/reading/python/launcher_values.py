"""Values of a Python program that is followed statement by statement: its own functions, classes and what they make.

What is not known stands in texts as a variable of the shell that is not set.
"""

import ast
import json
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlplan.planner.configs.reading.python.syntax import (
    Function,
    defaults_of,
    dotted,
    written,
)
from rlplan.planner.configs.reading.python.values import (
    CONVERSIONS,
    NO_CONSTANT,
    Expressions,
    Unknown,
    UnknownValueError,
    known,
    of_text,
)
from rlplan.planner.configs.shell.text import Gap, Text

# What stands in the modules of both frameworks that launchers import, as far as it says what is started.
OF_MODULES: Final[Mapping[str, Any]] = {
    "NUM_GPUS_OF_HARDWARE": {
        "H100": 8, "H200": 8, "B200": 8, "B300": 8, "GB200": 4, "GB300": 4, "MI350X": 8, "MI355X": 8,
    },
    "GENERATION_HARDWARE": {"H100": "Hopper", "GB200": "Blackwell", "GB300": "Blackwell"},
    "get_default_wandb_args": "", "get_mooncake_object_store_args": "",
    "get_env_enable_infinite_run": False, "is_npu": False,
}  # fmt: skip
PATHS: Final = ("Path", "abspath", "realpath", "expanduser", "resolve", "as_posix", "quote", "dedent")  # fmt: skip
TRUTHS: Final = ("true", "1")
ENVIRONMENT: Final = ("environ.get", "getenv")
# Functions of lists of numbers or truths, and of regular expressions.
NUMBERS: Final = ("any", "all", "sum", "sorted", "reversed", "range")
SEARCHES: Final = {"search": re.search, "match": re.match, "fullmatch": re.fullmatch}
# Rounds of a loop, characters of a text, powers, and characters of an expression that a message shows.
MOST_ROUNDS, MOST_TEXT, MOST_POWER, MOST_SHOWN = 500, 2**16, 64, 60
# Bits of a whole number, and parts of lists in lists that a text may show.
MOST_BITS, MOST_PARTS = 4096, 10_000
# Elements of a list that count as one part of an expression that is looked at.
PARTS_IN_ONE: Final = 5
TOO_LONG: Final = "is too long to be followed"
# Fields of a text that `format` fills in by their place, with widths below a thousand; widths above that.
_FIELDS: Final = re.compile(r"(?:[^{}]|\{\{|\}\}|\{\d{0,2}(?::[<>^+,.\ddefgs]{0,3})?\})*")
_WIDE: Final = re.compile(r"\d{4}")
# Regular expressions that are searched: short ones whose groups do not repeat, so that no search takes long.
_REPEATED_GROUP: Final = re.compile(r"\)[*+{]")
MOST_SEARCHED, MOST_REPEATS, MOST_OPTIONAL = 100, 3, 6
# Methods that change a list or a mapping itself.
CHANGING: Final = (
    "append", "extend", "insert", "remove", "pop", "popitem", "clear", "reverse", "sort", "update", "setdefault",
)  # fmt: skip
CHANGED: Final = "is changed where only a run would decide"
# Stands in a mapping for further keys that it may have by then.
OTHERS: Final = "**"


@dataclass(slots=True)
class Made:
    """Hold an object that the program makes of a class of its own, or of its options."""

    kind: "OwnClass | None"
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Code:
    """Hold a function of the program's own or of a module beside it, what it is bound to, and the names around it.

    Attributes:
        defaults: Of its parameters, as they are where it is written; empty of a method, whose are taken when it is called.
    """

    home: Any
    node: Function | ast.Lambda
    bound: Made | None = None
    around: tuple[dict[str, Any], ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Frame:
    """Hold what a function that is followed sets.

    Attributes:
        held: Its own names.
        around: Names of functions around its text, the innermost first.
        elsewhere: Names that it sets outside of itself (`global`, `nonlocal`), each with where.
        undecided: Why it may have returned something else before its end; empty if it has not.
    """

    held: dict[str, Any]
    around: tuple[dict[str, Any], ...] = ()
    elsewhere: dict[str, dict[str, Any]] = field(default_factory=dict)
    undecided: str = ""


@dataclass(frozen=True, slots=True)
class OwnClass:
    """Hold a class, and the program in which it stands."""

    home: Any
    node: ast.ClassDef


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Stand for what makes a command line of functions (`typer.Typer()`), or of options that are added one by one."""

    options: dict[str, ast.Call]


class ReturnError(Exception):
    """Leave a function with a value."""

    def __init__(self, value: Any) -> None:  # noqa: ANN401 -- whatever Python has
        super().__init__()
        self.value = value


class LauncherValues(Expressions, ABC):
    """Compute expressions of a program whose names are set by statements.

    Attributes:
        names: What it sets outside of functions.
        frames: Functions that are followed, the innermost last.
        environment: Variables that are set before it starts.
        gaps: Variables of the shell that stand for what is not known.
        line: Of the statement that is followed.
    """

    names: dict[str, Any]
    frames: list[Frame]
    environment: dict[str, str]
    gaps: dict[str, Text]
    line: int

    @abstractmethod
    def set_target(self, target: ast.expr, value: Any) -> None:  # noqa: ANN401 -- whatever Python has
        """Set a name, an attribute or an item."""

    @abstractmethod
    def attribute_of(self, made: "Made", name: str) -> Any:  # noqa: ANN401
        """Return an attribute of an object."""

    def named_of(self, node: ast.Call, depth: int) -> dict[str, Any]:
        """Return what a call gives by name."""
        given = dict[str, Any]()
        for word in node.keywords:
            held = self.entry(word.value, depth)
            if word.arg is not None:
                given[word.arg] = held
            else:
                given |= self.mapping_of(word.value, depth)
        return given

    def value(self, node: ast.AST, depth: int = 0) -> Any:  # noqa: ANN401
        """Return what an expression is; texts, lists and numbers only as far as programs have them."""
        found = super().value(node, depth)
        if isinstance(found, int) and found.bit_length() > MOST_BITS:
            raise UnknownValueError(TOO_LONG)
        if isinstance(found, str | list | dict) and len(found) > MOST_TEXT:
            raise UnknownValueError(TOO_LONG)
        if isinstance(found, list | dict):  # which takes time wherever it is looked through
            self.looked_at += len(found) // PARTS_IN_ONE
        return found

    def around(self) -> tuple[dict[str, Any], ...]:
        """Return the names that stand around what is written in the function that is followed."""
        return (self.frames[-1].held, *self.frames[-1].around) if self.frames else ()

    def placed_of(self, nodes: Sequence[ast.expr], depth: int) -> list[Any]:
        """Return what a call gives by place.

        Raises:
            UnknownValueError: How many values `*` gives is not known.
        """
        found = list[Any]()
        for each in nodes:
            if isinstance(each, ast.Starred):
                held = self.value(each.value, depth)
                if not isinstance(held, list):
                    raise UnknownValueError(NO_CONSTANT)
                found += held
            else:
                found.append(self.entry(each, depth))
        return found

    def of_list(self, node: ast.List | ast.Tuple, depth: int) -> list[Any]:
        """Return a list's elements, known or not, with those that `*` puts there."""
        found = list[Any]()
        for each in node.elts:
            held = self.entry(each.value if isinstance(each, ast.Starred) else each, depth)
            is_spread = isinstance(each, ast.Starred) and isinstance(held, list)
            found += held if is_spread else [held]
        return found

    of_tuple = of_list

    def whole(self, node: ast.expr) -> Any:  # noqa: ANN401
        """Return what an expression is, known or not."""
        return self.entry(node, 0)

    def truth(self, node: ast.expr) -> bool:
        """Return whether an expression is true."""
        return bool(known(self.value(node)))

    def of_name(self, node: ast.Name, _depth: int) -> Any:  # noqa: ANN401
        """Return what a name is set to, in the function that is followed or outside."""
        elsewhere = self.frames[-1].elsewhere.get(node.id) if self.frames else None
        for held in (*self.around(), self.names) if elsewhere is None else (elsewhere,):
            if node.id in held:
                return known(held[node.id])
        if node.id in OF_MODULES:
            return OF_MODULES[node.id]
        raise UnknownValueError("is known where it runs")

    def of_namedexpr(self, node: ast.NamedExpr, depth: int) -> Any:  # noqa: ANN401
        """Return a value that is given a name."""
        value = self.value(node.value, depth)
        self.set_target(node.target, value)
        return value

    def of_attribute(self, node: ast.Attribute, depth: int) -> Any:  # noqa: ANN401
        """Return an attribute of an object, a mapping, a path or a framework's module; the environment as a mapping."""
        if dotted(node) == "os.environ":
            return {**self.environment, OTHERS: Unknown("is known where it runs", "os.environ")}
        held = self.entry(node.value, depth)
        if isinstance(held, Made):
            return self.attribute_of(held, node.attr)
        if node.attr in OF_MODULES:
            return OF_MODULES[node.attr]
        held = known(held)
        if isinstance(held, LauncherValues) and node.attr in held.names:
            return known(held.names[node.attr])
        if isinstance(held, dict) and node.attr in held:
            return known(held[node.attr])
        text = of_text(held, node.attr) if isinstance(held, str) else None
        if text is None:
            raise UnknownValueError("is known where it runs")
        return text

    def of_lambda(self, node: ast.Lambda, _depth: int) -> Code:
        """Return a function that is written as a value."""
        return self.code_of(node)

    def code_of(self, node: Function | ast.Lambda) -> Code:
        """Return a function with its parameters' defaults, which Python computes once, where it is written."""
        given = {name: each for name, each in defaults_of(node).items() if each is not None}
        defaults = {name: self.whole(each) for name, each in given.items()}
        return Code(self, node, around=self.around(), defaults=defaults)

    def of_joinedstr(self, node: ast.JoinedStr, depth: int) -> str:
        """Return a text with values in it; for one that is not known stands a variable of the shell."""
        parts = list[str]()
        for each in node.values:
            if not isinstance(each, ast.FormattedValue):
                parts.append(str(self.value(each, depth)))
                continue
            value = self.entry(each.value, depth)
            spec = "" if each.format_spec is None else str(self.value(each.format_spec, depth))
            try:
                if _WIDE.search(spec):
                    raise UnknownValueError(TOO_LONG)
                text = shown(value)
                if each.conversion == ord("r"):
                    value = text = repr(value)
                parts.append(format(value, spec) if spec else text)
            except UnknownValueError as error:
                parts.append(self.gap(each.value, str(error)))
            except (TypeError, ValueError):
                parts.append(self.gap(each.value, NO_CONSTANT))
        return "".join(parts)

    def gap(self, node: ast.expr, reason: str) -> str:
        """Return a variable of the shell that stands for what is not known."""
        source = written(node)
        line = getattr(node, "lineno", self.line)
        gap = Gap(line=line, source=source, reason=reason)
        name = f"_OF_PROGRAM_{len(self.gaps)}"
        self.gaps[name] = Text(f"${{{''.join(source.split())}}}", line, (gap,))
        return f"${{{name}}}"

    def of_binop(self, node: ast.BinOp, depth: int) -> Any:  # noqa: ANN401
        """Return what arithmetic comes to; texts of flags are longer than other texts."""
        if isinstance(node.op, ast.Add):
            left, right = self.entry(node.left, depth), self.entry(node.right, depth)
            if isinstance(left, list) and isinstance(right, list):
                return left + right
            if isinstance(left, str) or isinstance(right, str):
                texts = [
                    each
                    if isinstance(each, str)
                    else self.gap(part, getattr(each, "reason", NO_CONSTANT))
                    for each, part in ((left, node.left), (right, node.right))
                ]
                if sum(map(len, texts)) > MOST_TEXT:
                    raise UnknownValueError("is too long to be followed")
                return "".join(texts)
            # Once each, or a sum of many would take twice as long with every one more.
            plain = ast.BinOp(ast.Constant(known(left)), node.op, ast.Constant(known(right)))
            return super().of_binop(plain, depth)
        if isinstance(node.op, ast.Pow):
            base, power = self.value(node.left, depth), self.value(node.right, depth)
            if isinstance(base, int) and isinstance(power, int) and 0 <= power <= MOST_POWER:
                return base**power
        return super().of_binop(node, depth)

    def of_set(self, node: ast.Set, depth: int) -> list[Any]:
        """Return what a set holds, each once."""
        return once_each(self.of_list(ast.List(elts=node.elts), depth))

    def of_listcomp(self, node: ast.ListComp | ast.GeneratorExp, depth: int) -> list[Any]:
        """Return what a list is made of, one value after another."""
        return self._rounds(node.generators, depth, lambda: self.entry(node.elt, depth))

    of_generatorexp = of_listcomp

    def of_dictcomp(self, node: ast.DictComp, depth: int) -> dict[str, Any]:
        """Return what a mapping is made of."""
        return dict(
            self._rounds(
                node.generators,
                depth,
                lambda: (str(self.value(node.key, depth)), self.entry(node.value, depth)),
            )
        )

    def _rounds(
        self, generators: Sequence[ast.comprehension], depth: int, made: Callable[[], Any]
    ) -> list[Any]:
        """Return what each round makes; its names are gone behind it."""
        if len(generators) != 1:
            raise UnknownValueError(NO_CONSTANT)
        values = self.value(generators[0].iter, depth)
        if not isinstance(values, list | dict) or len(values) > MOST_ROUNDS:
            raise UnknownValueError(NO_CONSTANT)
        found = list[Any]()
        self.frames.append(Frame({}, self.around()))
        try:
            for each in list(values):
                self.set_target(generators[0].target, each)
                if all(self.value(test, depth) for test in generators[0].ifs):
                    found.append(made())
        finally:
            self.frames.pop()
        return found

    def of_subscript(self, node: ast.Subscript, depth: int) -> Any:  # noqa: ANN401
        """Return an element, or a variable of the environment."""
        if dotted(node.value).endswith("environ"):
            return self._variable(str(self.value(node.slice, depth)))
        return super().of_subscript(node, depth)

    def of_compare(self, node: ast.Compare, depth: int) -> bool:
        """Return whether values are alike or in order, and whether a variable of the environment is set."""
        if isinstance(node.ops[0], ast.In | ast.NotIn) and dotted(node.comparators[0]).endswith(
            "environ"
        ):
            return (self.value(node.left, depth) in self.environment) == isinstance(
                node.ops[0], ast.In
            )
        return super().of_compare(node, depth)

    def _variable(self, name: str) -> str:
        if name not in self.environment:
            raise UnknownValueError(f"is the variable {name}, which is not set")
        return self.environment[name]

    def fits_case(self, pattern: ast.pattern, value: Any) -> bool:  # noqa: ANN401
        """Tell whether a value fits a pattern of `match`, and give its names what they stand for."""
        if isinstance(pattern, ast.MatchValue):
            return bool(self.value(pattern.value) == known(value))
        if isinstance(pattern, ast.MatchSingleton):
            return pattern.value is known(value)
        if isinstance(pattern, ast.MatchOr):
            return any(self.fits_case(each, value) for each in pattern.patterns)
        if isinstance(pattern, ast.MatchSequence):
            alike = isinstance(value, list) and len(value) == len(pattern.patterns)
            return alike and all(map(self.fits_case, pattern.patterns, value))
        if isinstance(pattern, ast.MatchAs):
            if pattern.pattern is not None and not self.fits_case(pattern.pattern, value):
                return False
            if pattern.name is not None:
                self.set_target(ast.Name(id=pattern.name), value)
            return True
        raise UnknownValueError(NO_CONSTANT)

    # What functions of Python's own make of values.

    def _call_moe_layer_freq(self, node: ast.Call, depth: int) -> str:
        given = self.named_of(node, depth)
        layers, dense = (known(given.get(each)) for each in ("nlayers", "first_k_dense_replace"))
        if not (isinstance(layers, int) and isinstance(dense, int)):
            raise UnknownValueError(NO_CONSTANT)
        dense = min(dense, layers)
        return "[" + ",".join(["0"] * dense + ["1"] * (layers - dense)) + "]"

    def _call_get_bool_env_var(self, node: ast.Call, depth: int) -> bool:
        name = str(self.value(node.args[0], depth))
        default = str(self.value(node.args[1], depth)) if len(node.args) > 1 else "false"
        return self.environment.get(name, default).lower() in TRUTHS

    def _call_replace(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        made = self.entry(node.args[0], depth) if node.args else None
        if isinstance(made, Made):
            return Made(made.kind, made.fields | self.named_of(node, depth))
        return self.of_known(node, "replace", depth)

    def _call_getattr(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        made, name = self.value(node.args[0], depth), str(self.value(node.args[1], depth))
        try:
            if isinstance(made, Made):
                return self.attribute_of(made, name)
        except UnknownValueError:
            pass
        if len(node.args) > 2:  # noqa: PLR2004 -- with a default
            return self.value(node.args[2], depth)
        raise UnknownValueError("is known where it runs")

    def _call_setattr(self, node: ast.Call, depth: int) -> None:
        made, name = self.value(node.args[0], depth), self.value(node.args[1], depth)
        if isinstance(made, Made):
            made.fields[str(name)] = self.entry(node.args[2], depth)

    def of_known(self, node: ast.Call, name: str, depth: int) -> Any:  # noqa: ANN401
        """Return what a function of Python's own, or a method of a value, makes of values."""
        if name in CHANGING and isinstance(node.func, ast.Attribute):
            held = self.value(node.func.value, depth)
            if isinstance(held, list | dict):
                return self._change(held, name, node, depth)
        given = [known(each) for each in self.placed_of(node.args, depth)]
        if name in NUMBERS and given and not node.keywords:
            return self._of_numbers(name, given)
        if name in PATHS and given and isinstance(given[0], str):
            return given[0]
        if name == "join" and given:
            return self._joined(node, given, depth)
        if name == "dict":
            held = dict(given[0]) if given and isinstance(given[0], dict) else {}
            return held | self.named_of(node, depth)
        if name in CONVERSIONS and given and not node.keywords:
            return self.converted(CONVERSIONS[name], given)
        return self._of_module(node, name, given, depth)

    def _joined(self, node: ast.Call, given: list[Any], depth: int) -> str:
        """Return texts with another one between them, or a path of its parts."""
        held = self.entry(node.func.value, depth) if isinstance(node.func, ast.Attribute) else None
        if isinstance(held, str) and isinstance(given[0], list):
            texts = [
                self.gap(node, each.reason) if isinstance(each, Unknown) else shown(each)
                for each in given[0]
            ]
            if sum(map(len, texts)) + len(held) * len(texts) > MOST_TEXT:
                raise UnknownValueError(TOO_LONG)
            return held.join(texts)
        return str(Path(*map(str, given)))

    def _of_module(self, node: ast.Call, name: str, given: list[Any], depth: int) -> Any:  # noqa: ANN401
        """Return what functions of the modules `json` and `re` make of values; else what a method does."""
        if name == "print":
            return None
        if name == "dumps" and given and isinstance(given[0], dict | list):
            return _json_of(given[0])
        if name in SEARCHES and dotted(node.func).startswith("re."):
            return _found(name, str(given[0]), str(given[1]))
        return self._of_holder(node, name, given, depth)

    def _call_map(self, node: ast.Call, depth: int) -> list[Any]:
        """Return a list's values as texts or numbers."""
        held = self.value(node.args[1], depth)
        kind = dotted(node.args[0])
        if kind not in CONVERSIONS or not isinstance(held, list):
            raise UnknownValueError(NO_CONSTANT)
        return [self.converted(CONVERSIONS[kind], [known(each)]) for each in held]

    def _of_numbers(self, name: str, given: list[Any]) -> Any:  # noqa: ANN401
        functions = {
            "any": any, "all": all, "sum": sum, "sorted": sorted, "range": lambda *ends: list(range(*ends)),
            "reversed": lambda held: list(reversed(held)),
        }  # fmt: skip
        if name == "range" and any(
            isinstance(each, int) and abs(each) > MOST_ROUNDS for each in given
        ):
            raise UnknownValueError("is too long to be followed")
        for each in given[0] if isinstance(given[0], list) else ():
            known(each)
        return self.converted(functions[name], given)  # type: ignore[arg-type]

    def _of_holder(self, node: ast.Call, name: str, given: list[Any], depth: int) -> Any:  # noqa: ANN401
        """Return what a method of a list, a mapping or a text returns, and do what it does."""
        held = self.value(node.func.value, depth) if isinstance(node.func, ast.Attribute) else None
        if isinstance(held, dict) and name in {"items", "keys", "values"}:
            return [list(each) if name == "items" else each for each in getattr(held, name)()]
        if isinstance(held, re.Match) and name == "group":
            return held.group(*given)
        if isinstance(held, str) and name == "format" and not node.keywords:
            if _FIELDS.fullmatch(held) is None:
                raise UnknownValueError(NO_CONSTANT)
            return self.converted(held.format, given)
        if isinstance(held, dict) and name == "get" and OTHERS in held and given[0] not in held:
            raise UnknownValueError("is known where it runs")
        return self.of_method(node, given, depth)

    def converted(self, function: Callable[..., Any], given: list[Any]) -> Any:  # noqa: ANN401
        """Return what a function of Python's own makes of values that are known in all their parts."""
        for each in given:
            shown(each)
        return super().converted(function, given)

    def _change(self, held: Any, name: str, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        """Change a list or a mapping, and return what the method returns; where that is not known, nothing of it is.

        What is added and not known stands in a list as one value.
        """
        try:
            given, named = self.placed_of(node.args, depth), self.named_of(node, depth)
            if name == "extend" and given and not isinstance(given[0], list):
                given = [[each if isinstance((each := given[0]), Unknown) else known(each)]]
            if name in {"insert", "remove", "pop", "update", "setdefault"}:
                known(given[0] if given else None)
            added = len(given[0]) if name == "extend" and given else 1
            if len(held) + added > MOST_PARTS or any(each is held for each in given[-1:]):
                raise UnknownValueError(TOO_LONG)
            return known(getattr(held, name)(*given, **named))
        except (UnknownValueError, AttributeError, TypeError, ValueError, LookupError) as error:
            lost = Unknown(CHANGED, written(node))
            if isinstance(held, list):
                held[:] = [lost]
            else:
                held |= dict.fromkeys(held, lost)
            raise UnknownValueError(CHANGED) from error


def once_each(held: list[Any]) -> list[Any]:
    """Return a list's elements as a set has them: each once.

    Raises:
        UnknownValueError: Some may be in no set.
    """
    try:
        return list(dict.fromkeys(held))
    except TypeError:
        raise UnknownValueError(NO_CONSTANT) from None


def _check_members(member: Any, held: Any) -> None:  # noqa: ANN401
    """Refuse to say that something is not among values of which some are not known.

    Raises:
        UnknownValueError: It may be one of these.
    """
    parts = held if isinstance(held, list) else ()
    is_unsure = any(isinstance(each, Unknown) for each in parts)
    is_unsure = is_unsure or (isinstance(held, dict) and OTHERS in held)
    if is_unsure and member not in held:
        raise UnknownValueError(NO_CONSTANT)


def shown(value: Any) -> str:  # noqa: ANN401
    """Return a value's text.

    Raises:
        UnknownValueError: It, or a part of it, is not known, is no plain value, or is too long.
    """
    waiting, parts, length = [value], 0, 0
    while waiting:
        each = known(waiting.pop())
        parts += 1
        length += len(each) if isinstance(each, str) else 1
        if parts > MOST_PARTS or length > MOST_TEXT:
            raise UnknownValueError(TOO_LONG)
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
        elif not isinstance(each, str | int | float | re.Match | None):
            raise UnknownValueError(NO_CONSTANT)
    return str(value)


def _found(name: str, pattern: str, text: str) -> re.Match[str] | None:
    """Return what a regular expression finds.

    Raises:
        UnknownValueError: It is none, or might take long.
    """
    repeats = sum(map(pattern.count, "*+{"))
    is_short = max(len(pattern), len(text)) <= MOST_SEARCHED
    is_short = is_short and repeats <= MOST_REPEATS and pattern.count("?") <= MOST_OPTIONAL
    if not is_short or _REPEATED_GROUP.search(pattern):
        raise UnknownValueError(TOO_LONG)
    try:
        return SEARCHES[name](pattern, text)
    except re.error:
        raise UnknownValueError(NO_CONSTANT) from None


def _json_of(value: Any) -> str:  # noqa: ANN401
    shown(value)
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        raise UnknownValueError(NO_CONSTANT) from None


def returns(body: Sequence[ast.stmt]) -> bool:
    """Tell whether a block returns a value, itself or in a block of its own."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Return) and part.value is not None:
            return True
        if not isinstance(part, Function | ast.ClassDef | ast.expr):
            waiting += ast.iter_child_nodes(part)
    return False


def rest_of(
    node: Function | ast.Lambda, placed: Sequence[Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a function's `*` and `**` parameters hold of what it is given by place and by name."""
    found = dict[str, Any]()
    taken = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    named = {*taken, *(each.arg for each in node.args.kwonlyargs)}
    if node.args.vararg is not None:
        found[node.args.vararg.arg] = list(placed[len(taken) :])
    if node.args.kwarg is not None:
        found[node.args.kwarg.arg] = {
            name: held for name, held in given.items() if name not in named
        }
    return found


def as_read(target: ast.expr) -> ast.expr:
    """Return what a statement sets as it is read."""
    if isinstance(target, ast.Name):
        return ast.copy_location(ast.Name(id=target.id, ctx=ast.Load()), target)
    return target


def variables_of(values: Any) -> str:  # noqa: ANN401
    """Return variables as they stand in front of a command; empty of what is no dictionary, without those that are not known."""
    held = values.items() if isinstance(values, dict) else ()
    texts = ((name, each) for name, each in held if isinstance(each, str | int | float))
    return "".join(
        f"{name}={shlex.quote(str(each))} "
        for name, each in texts
        if isinstance(name, str) and name.isidentifier()
    )
