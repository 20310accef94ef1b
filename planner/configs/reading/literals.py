"""What a Python program gives its calls: literals, constants, and options of its command line. Nothing of it is run."""

import ast
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from rlplan.errors import FileError
from rlplan.planner.configs.reading.given import Flat, GivenValue, nested_leaves
from rlplan.planner.configs.reading.python_syntax import (
    Function,
    attributes_in,
    changed_in,
    defaults_of,
    dotted,
    given_by,
    is_method,
    module_beside,
    names_in,
    only_return_of,
    opened_in,
    reset_in,
    set_in,
    tree_of,
    values_of,
    written,
)
from rlplan.planner.configs.reading.sheet import LaunchSheet, PythonCall
from rlplan.planner.configs.shell.text import Gap

ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
CONVERSIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "int": int, "float": float, "str": str, "bool": bool, "min": min, "max": max, "len": len,
}  # fmt: skip
# What a machine with GPUs of today answers.
TRUE_OF_GPUS: Final = ("*is_bf16_supported", "*is_bfloat16_supported", "*cuda.is_available")
# What variables are called that hold a command line's options.
OPTIONS: Final = ("*args*", "*arguments*", "*config*", "*cfg*", "*opt*", "*flags*")
# Characters of what a message shows of an expression, and of what arithmetic is done with.
LONGEST: Final = 64
MOST_CHARACTERS: Final = 1000
DEEPEST: Final = 50
# Parts of expressions that are looked at for one program.
MOST_NODES: Final = 100_000
# Calls that read a file of values, by its path or by what `open` returns.
READS_VALUES: Final = (
    "yaml.safe_load",
    "yaml.load",
    "yaml.full_load",
    "json.load",
    "OmegaConf.load",
)
OPENS: Final = ("open", "io.open")
# Stands for what a name means outside too.
SAME: Final = ast.Name(id="")
# Modules beside a program that are looked into.
MOST_MODULES: Final = 50
# Calls inside each other that are looked into for texts.
MOST_CALLS: Final = 3


Conditions = tuple[tuple[ast.expr, bool], ...]


class UnknownValueError(Exception):
    """Say why a value is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonKeys:
    """Hold what a Python program gives the calls that mean something.

    Attributes:
        flat: Values by key.
        callees: What is called, in the order in which it stands.
        options: Names of flags that the program's own command line has; what they give went into the calls.
        defaults: What classes that are made of such a call's have as defaults of their fields, by key.
    """

    flat: Flat
    defaults: Flat
    callees: tuple[str, ...]
    options: frozenset[str]


def python_keys(path: Path, calls: Mapping[str, PythonCall], arguments: Flat) -> PythonKeys:
    """Return what a Python program gives calls.

    Args:
        calls: What their arguments are, by patterns of the callee's name.
        arguments: Flags that the program is started with.

    Raises:
        FileError: It cannot be read, or is no Python of today.
    """
    program = _Program(path=path, calls=calls, arguments=arguments, tree=tree_of(path))
    program.collect()
    return PythonKeys(
        flat=program.keys(),
        defaults=program.defaults(),
        callees=tuple(program.callee(call) for call, _ in program.found),
        options=frozenset(program.options),
    )


def has_call(path: Path, patterns: Sequence[str], library: str = "") -> bool:
    """Tell whether a file is Python that calls one of some names.

    Args:
        library: Whose they are: those of a module beside the file that never names it are others, called alike.
    """
    try:
        tree = tree_of(path)
    except FileError:
        return False
    others = _imported_beside(path, tree, library) if library else frozenset()
    calls = (dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(name not in others and _fits(name, patterns) for name in calls)


def _imported_beside(path: Path, tree: ast.Module, library: str) -> frozenset[str]:
    """Return the names that a program imports from modules beside it that do not name a library."""
    found = set[str]()
    for node in (each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)):
        beside = module_beside(path, node.module or "")
        text = "" if beside is None else beside.read_bytes().decode(errors="replace")
        if beside is not None and library not in text:
            found |= {each.asname or each.name for each in node.names}
    return frozenset(found)


def has_start(launch: LaunchSheet, path: Path) -> bool:
    """Tell whether a program calls what starts a framework's training."""
    return has_call(path, launch.starts, launch.library)


def refused_call(launch: LaunchSheet, path: Path | None) -> str | None:
    """Return what a program's calls do otherwise than train with RL; None where none is known to, or where it does both."""
    if path is None or not launch.refused or has_start(launch, path):
        return None
    return next((what for call, what in launch.refused.items() if has_call(path, (call,))), None)


def _fits(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether a dotted name, or its end, fits one of some patterns."""
    parts = name.split(".")
    ends = [".".join(parts[at:]) for at in range(len(parts))]
    return bool(name) and any(fnmatchcase(end, each) for end in ends for each in patterns)


@dataclass(slots=True, kw_only=True)
class _Program:
    """Follow values through a program as far as they are constants.

    Attributes:
        constants: Expressions that names are set to, by name, with all that set it.
        attributes: What is set of names' attributes: name, attribute and value.
        options: Defaults of its command line's options, by name; None has none.
        borrowed: Modules beside the program that set names which it imports, by name, with what they call these.
        modules: Modules beside it, by what the program calls these.
        functions: Its functions, by name; None is not known.
        known: Modules that it and those that it imports have looked into, by file; None while one is looked into.
        opened: What calls are given by a name that `with` has given it, by the call's identity.
        changed: Names of mappings that are changed after they are made.
        fields: Defaults of fields of classes that are made of a call's class, by key.
        found: Calls that mean something, each with what its arguments are.
        held: On which conditions a part runs, each with whether it is to be true, by the part's identity.
        scopes: Parameters of the functions in which such a call stands, with their defaults, by the call's identity.
        parameters: Those of the call that is followed.
        looked_at: Parts of expressions that were looked at.
    """

    path: Path
    calls: Mapping[str, PythonCall]
    arguments: Flat
    tree: ast.Module
    constants: dict[str, list[ast.AST]] = field(default_factory=dict)
    attributes: list[tuple[str, str, ast.expr]] = field(default_factory=list)
    options: dict[str, ast.expr | None] = field(default_factory=dict)
    borrowed: dict[str, tuple["_Program", str]] = field(default_factory=dict)
    modules: dict[str, "_Program"] = field(default_factory=dict)
    functions: dict[str, Function | None] = field(default_factory=dict)
    known: "dict[Path, _Program | None]" = field(default_factory=dict)
    opened: dict[int, ast.expr] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    fields: list[tuple[str, ast.expr]] = field(default_factory=list)
    found: list[tuple[ast.Call, PythonCall]] = field(default_factory=list)
    held: dict[int, Conditions] = field(default_factory=dict)
    scopes: dict[int, dict[str, ast.expr | None]] = field(default_factory=dict)
    parameters: Mapping[str, ast.expr | None] = field(default_factory=dict)
    looked_at: int = 0

    def collect(self) -> None:
        """Look for what sets names, options and calls, in the order in which it stands."""
        for node in self._nodes():
            if isinstance(node, Function):
                self._function_of(node)
                self._parameters(node)
            elif isinstance(node, ast.ClassDef):
                self._fields(node)
            elif isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
            else:
                for target, value in set_in(node):
                    self._set(target, value)
        self.opened |= opened_in(self.tree)
        self.changed |= changed_in(self.tree)
        self._bind_parameters()
        self.found.sort(key=lambda each: each[0].lineno)

    def _function_of(self, node: Function) -> None:
        """Note a function by its name; one that is there more than once, or that something is put around, is none that is known."""
        if not is_method(node):
            is_known = node.name not in self.functions and not node.decorator_list
            self.functions[node.name] = node if is_known else None

    def _bind_parameters(self) -> None:
        """Take for the parameters of functions that are called in one place what they are given there."""
        sites: dict[str, list[ast.Call]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                sites.setdefault(node.func.id, []).append(node)
        for name, function in self.functions.items():
            if function is None or len(sites.get(name, ())) != 1:
                continue
            site = sites[name][0]
            outside = self.scopes.get(id(site), {})
            given = {
                each: self._meant_outside(each, value, outside)
                for each, value in given_by(site, function).items()
            } | dict.fromkeys(reset_in(function) & set(defaults_of(function)))
            for inner in (each for each in ast.walk(function) if isinstance(each, ast.Call)):
                scope = self.scopes.setdefault(id(inner), {})
                scope |= given
                for each in (each for each, value in given.items() if value is SAME):
                    del scope[each]

    def _meant_outside(
        self, name: str, value: ast.expr, outside: Mapping[str, ast.expr | None]
    ) -> ast.expr | None:
        """Return what a parameter is given, where the call may stand in a function with parameters of its own.

        Args:
            outside: Those parameters.
        """
        if isinstance(value, ast.Name) and value.id in outside:
            return outside[value.id]
        if set(names_in(value)) & set(outside):
            return None
        if isinstance(value, ast.Name) and value.id == name:
            return SAME if name in self.constants else None
        return value

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Take what modules beside the program set by themselves, as far as they are at hand."""
        above = "" if isinstance(node, ast.Import) else node.module or ""
        for each in node.names:
            name = each.asname or each.name
            whole = self._beside(".".join(filter(None, (above, each.name))))
            if whole is not None:
                self.modules[name] = whole
                continue
            holder = self._beside(above)
            if holder is not None:
                self.borrowed[name] = (holder, each.name)

    def _beside(self, name: str) -> "_Program | None":
        """Return a module beside the program; None where it is not at hand, is no Python, or imports this one."""
        path = module_beside(self.path, name) if len(self.known) < MOST_MODULES else None
        if path is None or path in self.known:
            return None if path is None else self.known[path]
        self.known[path] = None
        try:
            tree = tree_of(path)
        except FileError:
            return None
        found = _Program(path=path, calls={}, arguments={}, tree=tree, known=self.known)
        found.collect()
        self.known[path] = found
        return found

    def _nodes(self) -> Iterator[ast.AST]:
        """Yield all that the program consists of, and note on which conditions it runs."""
        waiting: deque[tuple[ast.AST, Conditions]] = deque([(self.tree, ())])
        while waiting:
            node, held = waiting.popleft()
            if held:
                self.held[id(node)] = held
            yield node
            for child in ast.iter_child_nodes(node):
                mine = held
                if isinstance(node, ast.If) and child is not node.test:
                    mine = (*held, (node.test, child in node.body))
                waiting.append((child, mine))

    def _runs(self, node: ast.AST, depth: int = 0) -> bool | None:
        """Return whether a part of the program runs; None where a condition of it is not known."""
        known: bool | None = True
        for test, wanted in self.held.get(id(node), ()):
            try:
                if bool(self._value(test, depth + 1)) != wanted:
                    return False
            except UnknownValueError:
                known = None
        return known

    def _set(self, target: ast.expr, value: ast.AST) -> None:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        for each in names:
            if isinstance(each, ast.Name):
                self.constants.setdefault(each.id, []).append(value)
        if not isinstance(target, ast.Attribute) or not isinstance(value, ast.expr):
            return
        if isinstance(target.value, ast.Name):
            self.attributes.append((target.value.id, target.attr, value))

    def _parameters(self, node: Function) -> None:
        """Note a function's parameters for all that stands in it; those of an inner function come later, and count."""
        found = defaults_of(node)
        found |= dict.fromkeys(reset_in(node) & set(found))
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                self.scopes.setdefault(id(inner), {}).update(found)

    def _fields(self, node: ast.ClassDef) -> None:
        """Take a data class's fields for options, as `HfArgumentParser` makes flags of them."""
        if not any("dataclass" in written(each) for each in node.decorator_list):
            return
        bases = (self._meant_by(dotted(base)) for base in node.bases)
        made_of = next((each for each in bases if each is not None), None)
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                default = each.value
                if isinstance(default, ast.Call):
                    named = {word.arg: word.value for word in default.keywords}
                    default = named.get("default")
                self.options.setdefault(each.target.id, default)
                if made_of is not None and default is not None:
                    self.fields.append((f"{made_of.prefix}{each.target.id}", default))

    def _meant_by(self, name: str) -> PythonCall | None:
        """Return what the arguments of a call of some name are; None where they mean nothing."""
        fitting = (each for pattern, each in self.calls.items() if _fits(name, (pattern,)))
        return next(fitting, None)

    def _call(self, node: ast.Call) -> None:
        name = dotted(node.func)
        if name.endswith("add_argument"):
            self._option(node)
        meant = self._meant_by(name)
        if meant is not None:
            self.found.append((node, meant))

    def _option(self, node: ast.Call) -> None:
        """Take an option of argparse with its default; a switch is off by default."""
        words = [each.value for each in node.args if isinstance(each, ast.Constant)]
        long = [str(word) for word in words if str(word).startswith("--")]
        named = {word.arg: word.value for word in node.keywords}
        default = named.get("default")
        action = named.get("action")
        if default is None and isinstance(action, ast.Constant) and action.value == "store_true":
            default = ast.Constant(value=False)
        for word in long:
            self.options[word.removeprefix("--").replace("-", "_")] = default

    def callee(self, call: ast.Call) -> str:
        """Return the last part of what is called."""
        return dotted(call.func).rpartition(".")[2]

    def keys(self) -> Flat:
        """Return what the calls are given, and what is set of their results afterwards."""
        flat: Flat = {}
        self.found = [each for each in self.found if self._runs(each[0]) is not False]
        for call, meant in self.found:
            self.parameters = self.scopes.get(id(call), {})
            given = [(word.arg, word.value) for word in call.keywords]
            if meant.first and call.args:
                given.insert(0, (meant.first, call.args[0]))
            for name, value in given:
                if name is None:
                    flat |= self._spread(meant.prefix, value)
                else:
                    flat |= self._given(f"{meant.prefix}{name}", value)
        self.parameters = {}
        for holder, name, value in self.attributes:
            made = self._result_of(holder)
            again = any(dotted(each) == f"{holder}.{name}" for each in attributes_in(value))
            if made is not None and not again:
                flat |= self._given(f"{made.prefix}{name}", value)
        return flat

    def defaults(self) -> Flat:
        """Return the defaults that classes made of a call's class have, as far as they are constants."""
        found = (self._given(key, default) for key, default in self.fields)
        return {key: given for each in found for key, given in each.items() if not given.gaps}

    def _spread(self, prefix: str, value: ast.expr) -> Flat:
        """Return the keys of a mapping that is given with `**`."""
        try:
            held = self._value(value)
        except UnknownValueError as error:
            source = f"**{written(value)}"
            return {f"{prefix}{source}": self._unknown(value, source, str(error))}
        where = f"{self.path}:{value.lineno}"
        inner = held.items() if isinstance(held, dict) else ()
        return {
            key: GivenValue(value=leaf, where=where)
            for name, each in inner
            for key, leaf in nested_leaves(f"{prefix}{name}", each)
        }

    def _given(self, key: str, value: ast.expr) -> Flat:
        """Return a key's value, or keys where it is a mapping; where it is what another such call returns, that call's first."""
        made = self._maker_of(value)
        if made is not None:
            first = self._first_of(*made)
            outside, self.parameters = self.parameters, self.scopes.get(id(made[0]), {})
            try:
                return {} if first is None else self._given(key, first)
            finally:
                self.parameters = outside
        where = f"{self.path}:{value.lineno}"
        try:
            held = self._value(value)
        except UnknownValueError as error:
            texts = tuple(self._texts_of(value))
            return {key: self._unknown(value, written(value), str(error), texts)}
        return {
            name: GivenValue(value=leaf, where=where) for name, leaf in nested_leaves(key, held)
        }

    def _texts_of(self, value: ast.expr, inside: int = 0) -> Iterator[str]:
        """Yield the texts that functions are given whose results a value is."""
        named = value.id if isinstance(value, ast.Name) else None
        for each in [value] if named is None else self.constants.get(named, []):
            given = (
                [*each.args, *(word.value for word in each.keywords)]
                if isinstance(each, ast.Call)
                else []
            )
            for argument in given if inside < MOST_CALLS else ():
                try:
                    held = self._value(argument)
                except UnknownValueError:
                    yield from self._texts_of(argument, inside + 1)
                    continue
                if isinstance(held, str):
                    yield held

    def _unknown(
        self, value: ast.expr, source: str, reason: str, texts: tuple[str, ...] = ()
    ) -> GivenValue:
        source = source if len(source) <= LONGEST else f"{source[:LONGEST]}..."
        gap = Gap(line=value.lineno, source=source, reason=reason, texts=texts)
        return GivenValue(value=source, where=f"{self.path}:{value.lineno}", gaps=(gap,))

    def _maker_of(self, value: ast.expr) -> tuple[ast.Call, PythonCall] | None:
        """Return which of the calls made a value; None where none did."""
        named = isinstance(value, ast.Name)
        values = self.constants.get(value.id, []) if isinstance(value, ast.Name) else [value]
        made = (each for each in self.found if any(each[0] is node for node in values))
        return next(made, None) if named or isinstance(value, ast.Call) else None

    def _first_of(self, call: ast.Call, meant: PythonCall) -> ast.expr | None:
        """Return what a call is given first, by its place or name; None where that means nothing."""
        named = (word.value for word in call.keywords if word.arg == meant.first)
        placed = call.args[0] if call.args and meant.first else None
        found = next(named, placed)
        return None if found is None or self._maker_of(found) is not None else found

    def _result_of(self, name: str) -> PythonCall | None:
        """Return which of the calls a name is the result of; None where it is of none."""
        made = self._maker_of(ast.Name(id=name))
        return None if made is None else made[1]

    def _value(self, node: ast.AST, depth: int = 0) -> Any:  # noqa: ANN401 -- whatever Python has
        """Return what an expression is.

        Raises:
            UnknownValueError: It is no constant.
        """
        self.looked_at += 1
        if depth > DEEPEST or self.looked_at > MOST_NODES:
            raise UnknownValueError("goes around in circles")
        kind = _KINDS.get(type(node))
        if kind is None:
            raise UnknownValueError("is no constant")
        return kind(self, node, depth + 1)

    def of_name(self, node: ast.Name, depth: int) -> Any:  # noqa: ANN401
        """Return what a name is set to."""
        values = self.constants.get(node.id, [])
        if not values and node.id in self.borrowed and node.id not in self.parameters:
            holder, name = self.borrowed[node.id]
            return self._unchanged(node.id, holder.of_name(ast.Name(id=name), depth))
        if node.id in self.parameters:
            default = self.parameters[node.id]
            if default is None:
                raise UnknownValueError("is a function's parameter")
            values = [default]
        running = [(each, self._runs(each, depth)) for each in values]
        chosen = [each for each, runs in running if runs and id(each) in self.held]
        values = chosen[-1:] or [each for each, runs in running if runs is not False]
        if not values:
            raise UnknownValueError("is set nowhere in the program")
        found = [self._value(each, depth) for each in values]
        if any(each != found[0] for each in found):
            raise UnknownValueError("is set in more than one way")
        return self._unchanged(node.id, found[0])

    def _unchanged(self, name: str, held: Any) -> Any:  # noqa: ANN401
        """Return what a name holds, where the program changes none of its items."""
        if isinstance(held, dict) and name in self.changed:
            raise UnknownValueError("is changed after it is set")
        return held

    def of_attribute(self, node: ast.Attribute, depth: int) -> Any:  # noqa: ANN401
        """Return a data type, or an option of the command line."""
        name = dotted(node)
        holder, _, last = name.rpartition(".")
        if holder in {"torch", "jnp", "np"}:
            return last
        if holder in self.modules and not {holder} & {*self.constants, *self.parameters}:
            held = self.modules[holder].of_name(ast.Name(id=last), depth)
            return self._unchanged(holder, held)
        held = self._mapping(node.value, depth)
        if held is not None and last in held:
            return held[last]
        if any(fnmatchcase(holder.lower(), each) for each in OPTIONS):
            return self._option_value(last, depth)
        raise UnknownValueError("is known where it runs")

    def _function(self, name: str) -> tuple["_Program", Function | None]:
        """Return a function of the program's own or of a module beside it, and in which of both it stands."""
        holder, _, last = name.rpartition(".")
        home = self.modules.get(holder) if holder else self
        if not holder and last in self.borrowed:
            home, last = self.borrowed[last]
        return (self, None) if home is None else (home, home.functions.get(last))

    def _bound(self, call: ast.Call, function: Function, depth: int) -> dict[str, ast.expr | None]:
        """Return a function's parameters as a call gives them; None is not known."""
        bound, reset = defaults_of(function), reset_in(function)
        for name, value in given_by(call, function).items():
            try:
                bound[name] = ast.Constant(value=self._value(value, depth))
            except UnknownValueError:
                bound[name] = None
        return bound | dict.fromkeys(reset & set(bound))

    def returned(
        self,
        function: Function,
        bound: Mapping[str, ast.expr | None],
        depth: int,
    ) -> Any:  # noqa: ANN401
        """Return what a function returns, where it does so in one place, of its parameters or a file that it reads."""
        only = only_return_of(function)
        if only is None or not (id(only) in self.opened or set(names_in(only)) <= set(bound)):
            raise UnknownValueError("is what a call returns")
        outside, self.parameters = self.parameters, bound
        try:
            return self._value(only, depth)
        finally:
            self.parameters = outside

    def _mapping(self, node: ast.expr, depth: int) -> dict[str, Any] | None:
        """Return a mapping that an expression is; None where it is none, or not known."""
        try:
            held = self._value(node, depth)
        except UnknownValueError:
            return None
        return held if isinstance(held, dict) else None

    def _read(self, call: ast.Call, depth: int) -> Any:  # noqa: ANN401
        """Return what a file holds that a program reads as YAML or JSON, by its path or as it has opened it."""
        given = self.opened.get(id(call), call.args[0])
        if isinstance(given, ast.Call) and dotted(given.func) in OPENS and given.args:
            given = given.args[0]
        try:
            return values_of(self.path, str(self._value(given, depth)))
        except FileError:
            raise UnknownValueError("is in a file that is not at hand") from None

    def _option_value(self, name: str, depth: int) -> Any:  # noqa: ANN401
        """Return what an option is given, or its default."""
        given = self.arguments.get(name) or self.arguments.get(name.replace("_", "-"))
        if given is not None:
            if given.gaps:
                raise UnknownValueError(f"is what {given.gaps[0].source} is")
            return given.value
        default = self.options.get(name)
        if default is None:
            raise UnknownValueError(f"is what --{name} says, which is not given")
        return self._value(default, depth)

    def of_call(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        """Return what a call of a few known functions returns."""
        name = dotted(node.func)
        if _fits(name, TRUE_OF_GPUS):
            return True
        if name == "dict":
            return {word.arg: self._value(word.value, depth) for word in node.keywords if word.arg}
        if _fits(name, READS_VALUES) and node.args:
            return self._read(node, depth)
        home, function = self._function(name)
        if function is not None:
            return home.returned(function, self._bound(node, function, depth), depth)
        inner = [self._value(each, depth) for each in node.args]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and inner:
            held = self._mapping(node.func.value, depth)
            if held is not None:
                return held.get(inner[0], inner[1] if len(inner) > 1 else None)
        if name in {"os.environ.get", "os.getenv", "environ.get"} and len(inner) == 2:  # noqa: PLR2004
            return inner[1]
        if name in CONVERSIONS and inner and not node.keywords:
            try:
                return CONVERSIONS[name](*inner)
            except (TypeError, ValueError, OverflowError):
                raise UnknownValueError("is no number") from None
        raise UnknownValueError("is what a call returns")

    def of_operator(self, node: ast.BinOp, depth: int) -> Any:  # noqa: ANN401
        """Return what arithmetic comes to."""
        left, right = (self._value(each, depth) for each in (node.left, node.right))
        function = ARITHMETIC.get(type(node.op))
        texts = isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add)
        numbers = all(isinstance(each, int | float) for each in (left, right))
        if function is None or not (texts or numbers):
            raise UnknownValueError("is no constant")
        if len(str(left)) + len(str(right)) > MOST_CHARACTERS:
            raise UnknownValueError("is too long to be followed")
        try:
            return function(left, right)
        except (TypeError, ValueError, ArithmeticError):
            raise UnknownValueError("is no number") from None

    def of_sign(self, node: ast.UnaryOp, depth: int) -> Any:  # noqa: ANN401
        """Return a value with a sign, or the opposite of a truth."""
        value = self._value(node.operand, depth)
        if isinstance(node.op, ast.Not):
            return not value
        if isinstance(node.op, ast.USub) and isinstance(value, int | float):
            return -value
        raise UnknownValueError("is no constant")

    def of_list(self, node: ast.List | ast.Tuple, depth: int) -> list[Any]:
        """Return a list's elements; what is no constant in it, such as a function, stands as it is written."""
        found = []
        for each in node.elts:
            try:
                found.append(self._value(each, depth))
            except UnknownValueError:
                found.append(written(each))
        return found

    def of_mapping(self, node: ast.Dict, depth: int) -> dict[str, Any]:
        """Return a mapping's entries."""
        return {
            str(self._value(key, depth)): self._value(value, depth)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        }

    def of_element(self, node: ast.Subscript, depth: int) -> Any:  # noqa: ANN401
        """Return an element of a list or mapping."""
        held, place = self._value(node.value, depth), self._value(node.slice, depth)
        try:
            return held[place]
        except (KeyError, IndexError, TypeError):
            raise UnknownValueError("is no constant") from None

    def of_text(self, node: ast.JoinedStr, depth: int) -> str:
        """Return a text with values in it."""
        parts = (
            str(self._value(each.value if isinstance(each, ast.FormattedValue) else each, depth))
            for each in node.values
        )
        return "".join(parts)

    def of_choice(self, node: ast.IfExp, depth: int) -> Any:  # noqa: ANN401
        """Return what a condition chooses."""
        chosen = node.body if self._value(node.test, depth) else node.orelse
        return self._value(chosen, depth)

    def of_truth(self, node: ast.BoolOp, depth: int) -> Any:  # noqa: ANN401
        """Return the first of several values that decides, as `or` and `and` do."""
        found: Any = None
        for each in node.values:
            found = self._value(each, depth)
            if bool(found) == isinstance(node.op, ast.Or):
                break
        return found

    def of_comparison(self, node: ast.Compare, depth: int) -> bool:
        """Return whether two values are alike."""
        left, right = self._value(node.left, depth), self._value(node.comparators[0], depth)
        if len(node.ops) > 1 or not isinstance(
            node.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.IsNot
        ):
            raise UnknownValueError("is no constant")
        alike = left == right
        return bool(alike) == isinstance(node.ops[0], ast.Eq | ast.Is)

    def of_constant(self, node: ast.Constant, _depth: int) -> object:
        """Return a literal."""
        return node.value


_KINDS: Final[Mapping[type[ast.AST], Callable[[_Program, Any, int], Any]]] = {
    ast.Constant: _Program.of_constant,
    ast.Name: _Program.of_name,
    ast.Attribute: _Program.of_attribute,
    ast.Call: _Program.of_call,
    ast.BinOp: _Program.of_operator,
    ast.UnaryOp: _Program.of_sign,
    ast.List: _Program.of_list,
    ast.Tuple: _Program.of_list,
    ast.Dict: _Program.of_mapping,
    ast.Subscript: _Program.of_element,
    ast.JoinedStr: _Program.of_text,
    ast.IfExp: _Program.of_choice,
    ast.BoolOp: _Program.of_truth,
    ast.Compare: _Program.of_comparison,
}
