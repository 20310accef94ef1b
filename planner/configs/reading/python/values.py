"""What expressions of Python come to whose parts are known. Nothing is run: each kind is computed by its own few lines."""

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlplan.errors import FileError
from rlplan.planner.configs.reading.given import scalar
from rlplan.planner.configs.reading.python.syntax import (
    Function,
    dotted,
    fits,
    reset_names,
    values_of,
    written,
)

ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
ORDERS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
CONVERSIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "int": int, "float": float, "str": str, "bool": bool, "min": min, "max": max, "len": len, "round": round,
    "abs": abs, "list": list, "tuple": list,
}  # fmt: skip
# Variables that launchers set for each process, whatever a program takes without them.
OF_LAUNCHERS: Final = frozenset(
    {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "CUDA_VISIBLE_DEVICES"}
)
OF_SLURM: Final = "SLURM_"
# What a machine with GPUs of today answers.
OF_GPUS: Final[Mapping[str, bool]] = {
    "*is_bf16_supported": True, "*is_bfloat16_supported": True, "*cuda.is_available": True, "*mps.is_available": False,
    "*mps.is_built": False, "*xpu.is_available": False, "*npu.is_available": False,
}  # fmt: skip
# Stands for what it says itself: `torch.device("cuda")` is its text.
OF_DEVICES: Final = ("torch.device",)
# Methods of texts that return a text, a list of texts or a truth of them.
OF_TEXTS: Final = (
    "lower", "upper", "strip", "lstrip", "rstrip", "replace", "split", "rsplit", "startswith", "endswith", "removeprefix",
    "removesuffix", "rpartition", "partition", "title",
)  # fmt: skip
# Characters of what a text is made of, and how deep parts of an expression stand in each other.
MOST_CHARACTERS: Final = 1000
DEEPEST: Final = 50
# Parts of expressions that are looked at for one program.
MOST_NODES: Final = 100_000
# How a reason ends of what a program's command line says.
NOT_GIVEN: Final = "which is not given"
NO_CONSTANT: Final = "is no constant"

RETURNS: Final = "is what a call returns"
# What is put around a function that gets what Hydra composes.
HYDRA: Final = ("hydra.main", "main")
# Stands for the end of a block that returns nothing.
GOES_ON: Final = object()


class UnknownValueError(Exception):
    """Say why a value is not known."""


class NotGivenError(UnknownValueError):
    """Say that an option is not given, which has no default in the program.

    Attributes:
        option: Its name.
        own: Whether it is the program's own, not one of its framework's.
    """

    def __init__(self, option: str, *, own: bool) -> None:
        self.option, self.own = option, own
        super().__init__(f"is what --{option} says, {NOT_GIVEN}")


class NoObjectError(UnknownValueError):
    """Say that an attribute is of no object that is known."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Stand for an entry of a mapping whose value is not known.

    Attributes:
        reason: Why.
        source: As it is written.
        node: The expression itself; None where it is of no program.
    """

    reason: str
    source: str
    node: ast.expr | None = None


def known(value: Any) -> Any:  # noqa: ANN401 -- whatever Python has
    """Return a value that is known.

    Raises:
        UnknownValueError: It stands for one that is not.
    """
    if isinstance(value, Unknown):
        raise UnknownValueError(value.reason)
    return value


class Expressions:
    """Compute expressions; what names, attributes and calls are, a program adds.

    Attributes:
        looked_at: Parts of expressions that were looked at.
    """

    looked_at: int

    def value(self, node: ast.AST, depth: int = 0) -> Any:  # noqa: ANN401
        """Return what an expression is.

        Raises:
            UnknownValueError: It is no constant.
        """
        self.looked_at += 1
        if depth > DEEPEST or self.looked_at > MOST_NODES:
            raise UnknownValueError("goes around in circles")
        method = getattr(self, f"of_{type(node).__name__.lower()}", None)
        if method is None:
            raise UnknownValueError(NO_CONSTANT)
        return method(node, depth + 1)

    def of_constant(self, node: ast.Constant, _depth: int) -> object:
        """Return a literal, or what stands for one that is known."""
        return known(node.value)

    def of_binop(self, node: ast.BinOp, depth: int) -> Any:  # noqa: ANN401
        """Return what arithmetic comes to."""
        left, right = (self.value(each, depth) for each in (node.left, node.right))
        function = ARITHMETIC.get(type(node.op))
        if isinstance(left, dict) and isinstance(right, dict) and isinstance(node.op, ast.BitOr):
            return left | right
        texts = isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add)
        if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Div):
            return f"{left.rstrip('/')}/{right}"  # paths
        numbers = all(isinstance(each, int | float) for each in (left, right))
        if function is None or not (texts or numbers):
            raise UnknownValueError(NO_CONSTANT)
        if len(str(left)) + len(str(right)) > MOST_CHARACTERS:
            raise UnknownValueError("is too long to be followed")
        try:
            return function(left, right)
        except (TypeError, ValueError, ArithmeticError):
            raise UnknownValueError("is no number") from None

    def of_unaryop(self, node: ast.UnaryOp, depth: int) -> Any:  # noqa: ANN401
        """Return a value with a sign, or the opposite of a truth."""
        value = self.value(node.operand, depth)
        if isinstance(node.op, ast.Not):
            return not value
        if isinstance(node.op, ast.USub) and isinstance(value, int | float):
            return -value
        raise UnknownValueError(NO_CONSTANT)

    def of_list(self, node: ast.List | ast.Tuple, depth: int) -> list[Any]:
        """Return a list's elements, known or not."""
        return [self.entry(each, depth) for each in node.elts]

    of_tuple = of_list

    def of_dict(self, node: ast.Dict, depth: int) -> dict[str, Any]:
        """Return a mapping's entries; one whose value is not known stands for that."""
        found = dict[str, Any]()
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                found |= self.mapping_of(value, depth)
            else:
                found[str(self.value(key, depth))] = self.entry(value, depth)
        return found

    def entry(self, node: ast.expr, depth: int) -> Any:  # noqa: ANN401
        """Return what an entry of a mapping is, known or not."""
        try:
            return self.value(node, depth)
        except UnknownValueError as error:
            return Unknown(str(error), written(node), node)

    def mapping_of(self, node: ast.expr, depth: int) -> dict[str, Any]:
        """Return an expression that is a mapping.

        Raises:
            UnknownValueError: It is none, or not known.
        """
        held = self.value(node, depth)
        if not isinstance(held, dict):
            raise UnknownValueError(NO_CONSTANT)
        return held

    def of_subscript(self, node: ast.Subscript, depth: int) -> Any:  # noqa: ANN401
        """Return an element of a list or mapping, or a part of a list."""
        held = self.value(node.value, depth)
        try:
            if isinstance(node.slice, ast.Slice):
                ends = (node.slice.lower, node.slice.upper, node.slice.step)
                place: Any = slice(*(each and self.value(each, depth) for each in ends))
            else:
                place = self.value(node.slice, depth)
            return known(held[place])
        except (KeyError, IndexError, TypeError, ValueError):
            raise UnknownValueError(NO_CONSTANT) from None

    def of_joinedstr(self, node: ast.JoinedStr, depth: int) -> str:
        """Return a text with values in it."""
        parts = (
            str(self.value(each.value if isinstance(each, ast.FormattedValue) else each, depth))
            for each in node.values
        )
        return "".join(parts)

    def of_ifexp(self, node: ast.IfExp, depth: int) -> Any:  # noqa: ANN401
        """Return what a condition chooses."""
        return self.value(node.body if self.value(node.test, depth) else node.orelse, depth)

    def of_boolop(self, node: ast.BoolOp, depth: int) -> Any:  # noqa: ANN401
        """Return the first of several values that decides, as `or` and `and` do."""
        found: Any = None
        for each in node.values:
            found = self.value(each, depth)
            if bool(found) == isinstance(node.op, ast.Or):
                break
        return found

    def of_machine(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        """Return what a call answers on a machine with GPUs, or the device that it makes, as its text; None for all others."""
        if fits(dotted(node.func), OF_DEVICES) and node.args:
            return self.value(node.args[0], depth)
        return of_gpus(node)

    def of_compare(self, node: ast.Compare, depth: int) -> bool:
        """Return whether two values are alike, in order, or one in the other."""
        left, right = self.value(node.left, depth), self.value(node.comparators[0], depth)
        kind = node.ops[0]
        if len(node.ops) > 1:
            raise UnknownValueError(NO_CONSTANT)
        try:
            if isinstance(kind, ast.Eq | ast.NotEq | ast.Is | ast.IsNot):
                return bool(left == right) == isinstance(kind, ast.Eq | ast.Is)
            if isinstance(kind, ast.In | ast.NotIn):
                return (left in right) == isinstance(kind, ast.In)
            return bool(ORDERS[type(kind)](left, right))
        except (TypeError, KeyError):
            raise UnknownValueError(NO_CONSTANT) from None

    def of_method(self, node: ast.Call, given: list[Any], depth: int) -> Any:  # noqa: ANN401
        """Return what a method of a text or a mapping returns.

        Raises:
            UnknownValueError: It is of neither, or not known.
        """
        if not isinstance(node.func, ast.Attribute) or node.keywords:
            raise UnknownValueError("is what a call returns")
        held, name = self.value(node.func.value, depth), node.func.attr
        if isinstance(held, dict) and name == "get" and given:
            return known(held.get(given[0], given[1] if len(given) > 1 else None))
        if isinstance(held, dict) and name == "copy":
            return dict(held)
        if isinstance(held, str) and name in OF_TEXTS:
            return self.converted(getattr(held, name), given)
        raise UnknownValueError("is what a call returns")

    def converted(self, function: Callable[..., Any], given: list[Any]) -> Any:  # noqa: ANN401
        """Return what a function of Python's own makes of values.

        Raises:
            UnknownValueError: It takes no such values.
        """
        if any(isinstance(each, str) and len(each) > MOST_CHARACTERS for each in given):
            raise UnknownValueError("is too long to be followed")
        try:
            found = function(*given)
        except (TypeError, ValueError, OverflowError):
            raise UnknownValueError("is no number") from None
        return list(found) if isinstance(found, tuple) else found


def named_arguments(call: ast.Call) -> dict[str, ast.expr]:
    """Return what a call gives by name."""
    return {word.arg: word.value for word in call.keywords if word.arg}


def overridden(held: Mapping[str, Any], words: Iterable[object]) -> dict[str, Any]:
    """Return what a file holds, with words of a command line such as `a.b=c` over it.

    What is composed where it runs, as `${a.b}`, is not known.
    """
    found: dict[str, Any] = _without_references(held)
    for word in words:
        key, equals, value = str(word).lstrip("+").partition("=")
        if isinstance(word, Unknown) or not equals or key.startswith("-"):
            continue
        *above, last = key.split(".")
        inner = found
        for part in above:
            inner = inner[part] if isinstance(inner.get(part), dict) else inner.setdefault(part, {})
        inner[last] = _without_references(scalar(value))
    return found


def composed_by_hydra(path: Path, call: ast.Call, words: Iterable[object]) -> dict[str, Any] | None:
    """Return the file that Hydra composes for a function of a program, where it is composed of nothing else; else None.

    Args:
        call: What is put around the function.
        words: What stands behind the program on its command line.
    """
    named = named_arguments(call)
    folder, file = (
        each.value if isinstance(each, ast.Constant) else None
        for each in (named.get("config_path"), named.get("config_name"))
    )
    if not isinstance(file, str):
        return None
    base = path.parent / (folder if isinstance(folder, str) else ".")
    try:
        held = values_of(base / "x.py", f"{file.removesuffix('.yaml')}.yaml")
    except FileError:
        return None
    whole = isinstance(held, dict) and all(each == "_self_" for each in held.get("defaults") or ())
    return overridden(held, words) if whole else None


def _without_references(held: Any) -> Any:  # noqa: ANN401 -- whatever YAML has
    if isinstance(held, Mapping):
        return {str(key): _without_references(value) for key, value in held.items()}
    if isinstance(held, str) and "${" in held:
        return Unknown("is composed where it runs", held)
    return held


def constant_of(value: Any) -> ast.Constant:  # noqa: ANN401 -- whatever Python has
    """Return an expression that stands for a value, be it a mapping or one that is not known."""
    return ast.Constant(value=value)


# What functions of a Python program return for known parameters: statement by statement, and nothing of it is run.


def of_gpus(call: ast.Call) -> bool | None:
    """Return what a call answers on a machine with GPUs; None where that is not known."""
    name = dotted(call.func)
    return next((answer for call, answer in OF_GPUS.items() if fits(name, (call,))), None)


def of_text(held: str, name: str) -> str | None:
    """Return an attribute of a path or a device that stands as its text (`cuda:0`); None where it has no such one."""
    if name == "type":
        return held.partition(":")[0]
    return str(getattr(Path(held), name)) if name in {"parent", "stem", "name"} else None


class Scoped(Expressions):
    """Compute expressions of names that stand for parameters.

    Attributes:
        parameters: Expressions that names stand for; None is not known.
    """

    parameters: Mapping[str, ast.expr | None]


def returned_by(
    values: Scoped, function: Function, bound: Mapping[str, ast.expr | None], depth: int
) -> Any:  # noqa: ANN401 -- whatever Python has
    """Return what a function returns for its parameters.

    Conditions have to be known where what they decide matters, and nothing may be returned out of a loop or where an
    exception is handled.

    Raises:
        UnknownValueError: It is not known, or returns nothing.
    """
    outside, values.parameters = values.parameters, dict(bound)
    try:
        found = _block(values, function.body, depth)
    finally:
        values.parameters = outside
    if found is GOES_ON:
        raise UnknownValueError(RETURNS)
    return found


def _block(values: Scoped, body: Sequence[ast.stmt], depth: int) -> Any:  # noqa: ANN401
    for each in body:
        found = _statement(values, each, depth)
        if found is not GOES_ON:
            return found
    return GOES_ON


def _statement(values: Scoped, node: ast.stmt, depth: int) -> Any:  # noqa: ANN401
    """Return what a statement returns out of its function; else note what it sets."""
    if isinstance(node, ast.Return | ast.Raise):
        if not isinstance(node, ast.Return) or node.value is None:
            raise UnknownValueError(RETURNS)
        return values.value(node.value, depth)
    if isinstance(node, ast.If):
        return _branch(values, node, depth)
    if isinstance(node, ast.With | ast.Try):
        return _inside(values, node, depth)
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        _set(values, node, depth)
    elif isinstance(node, ast.Expr | ast.Delete):
        _change(values, node)
    else:
        if _returns(node) and not isinstance(node, Function | ast.ClassDef):
            raise UnknownValueError(RETURNS)
        _forget(values, (node,))
    return GOES_ON


def _inside(values: Scoped, node: ast.With | ast.Try, depth: int) -> Any:  # noqa: ANN401
    """Return what a `with` or `try` block returns if it raises nothing."""
    if isinstance(node, ast.With):
        _forget(values, [each.optional_vars for each in node.items if each.optional_vars])
        return _block(values, node.body, depth)
    handled = [*node.handlers, *node.orelse, *node.finalbody]
    if any(map(_returns, handled)):
        raise UnknownValueError(RETURNS)
    found = _block(values, node.body, depth)
    if found is GOES_ON:
        _forget(values, handled)
    return found


def _branch(values: Scoped, node: ast.If, depth: int) -> Any:  # noqa: ANN401
    try:
        chosen = node.body if values.value(node.test, depth) else node.orelse
    except UnknownValueError:
        if any(map(_returns, (*node.body, *node.orelse))):
            raise
        _forget(values, (*node.body, *node.orelse))
        return GOES_ON
    return _block(values, chosen, depth)


def _set(values: Scoped, node: ast.Assign | ast.AnnAssign | ast.AugAssign, depth: int) -> None:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    target = targets[0]
    value = node.value
    if isinstance(node, ast.AugAssign) and isinstance(target, ast.Name):
        value = ast.BinOp(left=ast.Name(id=target.id), op=node.op, right=node.value)
    if len(targets) == 1 and isinstance(target, ast.Name) and value is not None:
        held = ast.Constant(value=values.entry(value, depth))
        values.parameters = {**values.parameters, target.id: held}
        return
    _forget(values, targets)


def _change(values: Scoped, node: ast.stmt) -> None:
    """Forget the names whose methods are called, or whose items are deleted: they may hold something else by then."""
    called = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    held = [each.func.value for each in called if isinstance(each.func, ast.Attribute)]
    deleted = node.targets if isinstance(node, ast.Delete) else []
    names = (
        name.id
        for each in (*held, *deleted)
        for name in ast.walk(each)
        if isinstance(name, ast.Name) and name.id in values.parameters
    )
    _forget_names(values, list(names))


def _forget(values: Scoped, nodes: Iterable[ast.AST]) -> None:
    """Forget the names that nodes set, or change an item or attribute of."""
    _forget_names(values, [name for each in nodes for name in reset_names(each)])


def _forget_names(values: Scoped, names: Iterable[str]) -> None:
    values.parameters = {**values.parameters, **dict.fromkeys(names)}


def _returns(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Return) for each in ast.walk(node))
