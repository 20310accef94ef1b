"""A Python program as far as its names, options, classes and functions are constants. Nothing of it is run."""

import ast
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from rlplan.errors import FileError
from rlplan.planner.configs.reading.given import Flat
from rlplan.planner.configs.reading.python.changes import (
    CHANGED,
    Changing,
    Conditions,
    Home,
)
from rlplan.planner.configs.reading.python.options import given_as
from rlplan.planner.configs.reading.python.syntax import (
    ANY_ATTRIBUTE,
    TOP,
    Function,
    Place,
    changes_in,
    class_fields,
    decorators_of,
    default_of_field,
    defaults_of,
    dotted,
    fits,
    given_by,
    is_method,
    module_beside,
    names_in,
    opened_in,
    option_names,
    parts_set,
    place_inside,
    reset_in,
    root_of,
    set_in,
    tree_of,
    values_of,
    with_self,
    written,
    written_alike,
)
from rlplan.planner.configs.reading.python.values import (
    CONVERSIONS,
    HYDRA,
    OF_LAUNCHERS,
    OF_SLURM,
    RETURNS,
    NoObjectError,
    NotGivenError,
    UnknownValueError,
    composed_by_hydra,
    constant_of,
    known,
    named_arguments,
    of_text,
    returned_by,
)
from rlplan.planner.configs.reading.sheet import PythonCall

# What variables are called that hold a command line's options.
OPTIONS: Final = ("*args*", "*arguments*", "*config*", "*cfg*", "*opt*", "*flags*")
# Calls that read a file of values, by its path or by what `open` returns.
READS_VALUES: Final = ("yaml.safe_load", "yaml.load", "yaml.full_load", "json.load", "OmegaConf.load")  # fmt: skip
OPENS: Final = ("open", "io.open")
# Calls whose path is their first argument's.
PATHS: Final = ("Path", "pathlib.Path", "os.path.abspath", "os.path.realpath", "os.path.expanduser", "str")  # fmt: skip
ENVIRONMENT: Final = ("os.environ.get", "os.getenv", "environ.get", "getenv")
VARIABLES: Final = ("os.environ", "environ")
# Decorators and calls that make a command line of a function's parameters.
OF_COMMAND_LINES: Final = ("*command", "click.option", "click.argument", "*.callback")
STARTS_FUNCTIONS: Final = ("fire.Fire", "Fire", "typer.run")
GIVES_DEFAULTS: Final = ("typer.Option", "typer.Argument", "Option")
# Parsers that make flags of classes' fields.
PARSERS: Final = ("TrlParser", "HfArgumentParser", "H4ArgumentParser")
# Stands for what a name means outside too.
SAME: Final = ast.Name(id="")
# Modules beside a program that are looked into.
MOST_MODULES: Final = 50


@dataclass(slots=True, kw_only=True)
class Program(Changing):
    """Follow values through a program as far as they are constants.

    Attributes:
        constants: Expressions that names are set to, by name, with all that set it.
        attributes: What is set of names' attributes: name, attribute and value.
        options: Defaults of its command line's options, by name; None has none.
        same: All names of an option, by each of them.
        added: The calls that add options, by their names.
        borrowed: Modules beside the program that set names which it imports, by name, with what they call these.
        modules: Modules beside it, by what the program calls these.
        functions: Its functions, by name; None is not known.
        classes: Its classes, by name.
        known: Modules that it and those that it imports have looked into, by file; None while one is looked into.
        opened: What calls are given by a name that `with` has given it, by the call's identity.
        changes: What changes mappings after they are made, by where a name means them and the name.
        outer: Names that functions declare as `global` or `nonlocal`.
        local: Names that functions have of their own.
        fields: Defaults of fields of classes that are made of a call's class, by key.
        found: Calls that mean something, each with what its arguments are.
        sites: All calls, by what is called.
        held: On which conditions a part runs, each with whether it is to be true, by the part's identity.
        places: Where parts stand, by their identity.
        scopes: Parameters of the functions in which such a call stands, with their defaults, by the call's identity.
        parameters: Those of the call that is followed.
        environment: Variables of the command that starts it.
        words: What stands behind it on its command line; what is not known stands for that.
        taken: Defaults that were taken where nothing is given, by option or variable.
        followed: Options that are asked for while it is looked at what sets them: holder and name.
        looked_at: Parts of expressions that were looked at.
    """

    path: Path
    calls: Mapping[str, PythonCall]
    arguments: Flat
    tree: ast.Module
    constants: dict[str, list[ast.AST]] = field(default_factory=dict)
    attributes: list[tuple[str, str, ast.expr]] = field(default_factory=list)
    options: dict[str, ast.expr | None] = field(default_factory=dict)
    same: dict[str, list[str]] = field(default_factory=dict)
    added: dict[str, ast.Call] = field(default_factory=dict)
    borrowed: dict[str, tuple["Program", str]] = field(default_factory=dict)
    modules: dict[str, "Program"] = field(default_factory=dict)
    functions: dict[str, Function | None] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    known: "dict[Path, Program | None]" = field(default_factory=dict)
    opened: dict[int, ast.expr] = field(default_factory=dict)
    changes: dict[Home, list[ast.AST]] = field(default_factory=dict)
    outer: set[Home] = field(default_factory=set)
    local: set[Home] = field(default_factory=set)
    fields: list[tuple[str, ast.expr]] = field(default_factory=list)
    found: list[tuple[ast.Call, PythonCall]] = field(default_factory=list)
    sites: dict[str, list[ast.Call]] = field(default_factory=dict)
    held: dict[int, Conditions] = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)
    scopes: dict[int, dict[str, ast.expr | None]] = field(default_factory=dict)
    parameters: Mapping[str, ast.expr | None] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    words: tuple[object, ...] = ()
    taken: dict[str, object] = field(default_factory=dict)
    followed: set[tuple[str, str]] = field(default_factory=set)
    looked_at: int = 0

    def collect(self) -> None:
        """Look for what sets names, options and calls, in the order in which it stands."""
        changes = list[tuple[str, ast.AST]]()
        for node in self._nodes():
            if isinstance(node, Function):
                self._function_of(node)
                self._parameters(node)
            elif isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
                self._fields(node)
            elif isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
            else:
                for target, value in set_in(node):
                    self._set(target, value)
            self.note_names(node)
            changes += changes_in(node)
        self.follow_names(changes)
        self.opened |= opened_in(self.tree)
        self._bind_parameters()
        self._take_called_otherwise()
        self.found.sort(key=lambda each: each[0].lineno)

    def changed_elsewhere(self, call: ast.Call) -> Iterator[tuple[str, bool]]:
        """Yield the names that a call gives to a function of another module which changes them, and whether it sets attributes."""
        home, function = self._function(dotted(call.func))
        if function is None or home is self:
            return
        for parameter, value in given_by(call, function).items():
            root = root_of(value)
            sets = any(
                name == parameter and home.places.get(id(each), TOP).function == id(function)
                for name, _, each in home.attributes
            )
            if root is not None and (sets or home.changes.get((id(function), parameter))):
                yield root, sets

    def _take_called_otherwise(self) -> None:
        """Note calls by a name that is set to one which means something, or to one of several."""
        known = {id(call) for call, _ in self.found}
        for name, calls in self.sites.items():
            held = [each for each in self.constants.get(name, []) if isinstance(each, ast.expr)]
            named = [each for value in held for each in self.called_as(value)]
            meant = next(filter(None, map(self.meant_by, named)), None)
            if meant is not None:
                self.found += [(call, meant) for call in calls if id(call) not in known]

    def called_as(self, node: ast.expr) -> Iterator[str]:
        """Yield the names that an expression may be, of which a condition chooses one."""
        if not isinstance(node, ast.IfExp):
            yield dotted(node)
            return
        try:
            chosen = [node.body if self.value(node.test) else node.orelse]
        except UnknownValueError:
            chosen = [node.body, node.orelse]
        for each in chosen:
            yield from self.called_as(each)

    def _function_of(self, node: Function) -> None:
        """Note a function by its name; one that is there more than once, or that something is put around, is none that is known."""
        if not is_method(node):
            is_known = node.name not in self.functions and not node.decorator_list
            self.functions[node.name] = node if is_known else None

    def _bind_parameters(self) -> None:
        """Take for the parameters of functions what they are given in all places where they are called."""
        for name, function in self.functions.items():
            sites = self.sites.get(name, ())
            if function is None or not sites:
                continue
            each_given = [self._given_at(site, function) for site in sites]
            given = each_given[0]
            for other in each_given[1:]:
                given = {
                    each: given.get(each)
                    if written_alike(given.get(each), other.get(each))
                    else None
                    for each in given.keys() | other.keys()
                }
            given |= dict.fromkeys(reset_in(function) & set(defaults_of(function)))
            self._scope(function, given)

    def _given_at(self, site: ast.Call, function: Function) -> dict[str, ast.expr | None]:
        """Return the arguments of a call by parameter, as far as they mean the same outside the function with the call."""
        outside = self.scopes.get(id(site), {})
        return {
            each: self._meant_outside(each, value, outside)
            for each, value in given_by(site, function).items()
        }

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

    def _beside(self, name: str) -> "Program | None":
        """Return a module beside the program; None where it is not at hand, is no Python, or imports this one."""
        path = module_beside(self.path, name) if len(self.known) < MOST_MODULES else None
        if path is None or path in self.known:
            return None if path is None else self.known[path]
        self.known[path] = None
        try:
            tree = tree_of(path)
        except FileError:
            return None
        found = Program(
            path=path,
            calls={},
            arguments={},
            tree=tree,
            known=self.known,
            environment=self.environment,
            taken=self.taken,
        )
        found.collect()
        self.known[path] = found
        return found

    def _nodes(self) -> Iterator[ast.AST]:
        """Yield all that the program consists of, and note where it stands and on which conditions it runs."""
        waiting: deque[tuple[ast.AST, Conditions, Place]] = deque([(self.tree, (), TOP)])
        while waiting:
            node, held, place = waiting.popleft()
            if held:
                self.held[id(node)] = held
            if place != TOP:
                self.places[id(node)] = place
            yield node
            inner = place_inside(node, place)
            for child in ast.iter_child_nodes(node):
                mine = held
                if isinstance(node, ast.If) and child is not node.test:
                    mine = (*held, (node.test, child in node.body))
                waiting.append((child, mine, inner))

    def _set(self, target: ast.expr, value: ast.AST) -> None:
        for each, part in parts_set(target, value, lambda name: self.meant_by(name) is not None):
            if isinstance(each, ast.Name):
                self.constants.setdefault(each.id, []).append(part)
                if part is not value:
                    self._stand_like(part, value)
        if not isinstance(target, ast.Attribute) or not isinstance(value, ast.expr):
            return
        if isinstance(target.value, ast.Name):
            self.attributes.append((target.value.id, target.attr, value))

    def _stand_like(self, part: ast.AST, whole: ast.AST) -> None:
        """Let a part of a value stand where the value does."""
        if id(whole) in self.held:
            self.held[id(part)] = self.held[id(whole)]
        if id(whole) in self.places:
            self.places[id(part)] = self.places[id(whole)]

    def _parameters(self, node: Function) -> None:
        """Note a function's parameters for all that stands in it; those of an inner function come later, and count."""
        found = defaults_of(node)
        found |= dict.fromkeys(reset_in(node) & set(found))
        decorators = [*decorators_of(node)]
        for name, call in decorators:
            if call is not None and name.endswith((".option", ".argument")):
                self._option(call)
            if call is not None and fits(name, HYDRA) and found:
                self._hydra(call, found)
                self._made_of_class(call, found)
        if any(fits(name, OF_COMMAND_LINES) for name, _ in decorators):
            self._command(node, found)
        self._scope(node, found)

    def _scope(self, node: Function, found: Mapping[str, ast.expr | None]) -> None:
        """Note a function's parameters for the calls that stand in it, but those that mean what they mean outside."""
        for inner in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
            scope = self.scopes.setdefault(id(inner), {})
            scope |= found
            for each in (each for each, value in found.items() if value is SAME):
                del scope[each]

    def _command(self, node: Function, found: dict[str, ast.expr | None]) -> None:
        """Take for a function's parameters the options of the command line that is made of them."""
        for name, default in defaults_of(node).items():
            self.options.setdefault(name, default)
            found[name] = ast.Attribute(value=ast.Name(id="args"), attr=name)

    def _hydra(self, call: ast.Call, found: dict[str, ast.expr | None]) -> None:
        """Take for a function's first parameter the file that Hydra composes, where it is composed of nothing else."""
        held = composed_by_hydra(self.path, call, self.words)
        if held is not None:
            found[next(iter(found))] = constant_of(held)

    def _made_of_class(self, call: ast.Call, found: dict[str, ast.expr | None]) -> None:
        """Take for a function's first parameter what a class makes that pydra is given, where no word changes it."""
        base = named_arguments(call).get("base")
        if isinstance(base, ast.Name) and not any("=" in str(word) for word in self.words):
            found[next(iter(found))] = ast.Call(func=base, args=[], keywords=[])

    def _fields(self, node: ast.ClassDef) -> None:
        """Take a data class's fields for options, as `HfArgumentParser` makes flags of them."""
        if not any("dataclass" in written(each) for each in node.decorator_list):
            return
        bases = (self.meant_by(dotted(base)) for base in node.bases)
        made_of = next((each for each in bases if each is not None), None)
        for name, value in class_fields(node).items():
            default = default_of_field(value)
            self.options.setdefault(name, default)
            if made_of is not None and default is not None:
                self.fields.append((f"{made_of.prefix}{name}", default))

    def meant_by(self, name: str) -> PythonCall | None:
        """Return what the arguments of a call of some name are; None where they mean nothing."""
        fitting = (each for pattern, each in self.calls.items() if fits(name, (pattern,)))
        return next(fitting, None)

    def _meant_by_class(self, name: str) -> PythonCall | None:
        """Return what the arguments of a call of a class of the program's own are that is made of one that means something."""
        made = self.classes.get(name)
        bases = () if made is None else made.bases
        return next(filter(None, (self.meant_by(dotted(base)) for base in bases)), None)

    def _call(self, node: ast.Call) -> None:
        name = dotted(node.func)
        self.sites.setdefault(name, []).append(node)
        if name.endswith("add_argument"):
            self._option(node)
        if name.endswith("set_defaults"):
            self.options |= named_arguments(node)
        if name in STARTS_FUNCTIONS and node.args and isinstance(node.args[0], ast.Name):
            function = self.functions.get(node.args[0].id)
            found = dict[str, ast.expr | None]()
            if function is not None:
                self._command(function, found)
                self._scope(function, found)
        meant = self.meant_by(name) or self._meant_by_class(name)
        inside = self.places.get(id(node), TOP).holder
        is_part = bool(inside and self.meant_by(inside) and self.classes[inside].bases)
        if meant is not None and not is_part:
            self.found.append((node, meant))

    def _option(self, node: ast.Call) -> None:
        """Take an option of argparse or click with its default; a switch is off by default, or on where it stores that."""
        named = named_arguments(node)
        default, action = named.get("default"), named.get("action")
        stored = action.value if isinstance(action, ast.Constant) else None
        if default is None and stored in {"store_true", "store_false"}:
            default = ast.Constant(value=stored == "store_false")
        names = option_names(node)
        for word in names:
            self.options[word] = default
            self.same[word] = names
            self.added[word] = node

    def of_name(self, node: ast.Name, depth: int) -> Any:  # noqa: ANN401
        """Return what a name is set to."""
        if node.id in {"__file__", "__name__"} and node.id not in self.constants:
            return str(self.path) if node.id == "__file__" else "__main__"
        values = self.set_near(node)
        if not values and node.id in self.borrowed and node.id not in self.parameters:
            holder, name = self.borrowed[node.id]
            return self.changed(node, holder.of_name(ast.Name(id=name), depth))
        if node.id in self.parameters:
            default = self.parameters[node.id]
            if default is None:
                raise UnknownValueError("is a function's parameter")
            values = [default]
        running = [(each, self.runs(each, depth)) for each in values]
        chosen = [each for each, runs in running if runs and id(each) in self.held]
        values = chosen[-1:] or [each for each, runs in running if runs is not False]
        if not values:
            raise UnknownValueError("is set nowhere in the program")
        held = [self.value(each, depth) for each in values]
        if any(each != held[0] for each in held):
            raise UnknownValueError("is set in more than one way")
        outside = node.id not in self.parameters
        whole = self.changed_outside(node, held[0]) if outside else held[0]
        return self.changed(node, whole)

    def of_attribute(self, node: ast.Attribute, depth: int) -> Any:  # noqa: ANN401
        """Return a data type, an attribute of an object of the program's, or an option of the command line."""
        name = dotted(node)
        holder, _, last = name.rpartition(".")
        if holder in {"torch", "jnp", "np"}:
            return last
        if name == "sys.argv":
            return [str(self.path), *self.words]
        if holder in self.modules and not {holder} & {*self.constants, *self.parameters}:
            module = self.modules[holder]
            held = module.of_name(ast.Name(id=last), depth)
            if self.changes.get((0, holder)) and isinstance(held, dict):
                raise UnknownValueError(CHANGED)
            return held
        try:
            return self._of_object(node, depth)
        except NoObjectError:
            if not any(fnmatchcase(holder.lower(), each) for each in OPTIONS):
                raise
        return self._set_option(holder, last, depth)

    def _set_option(self, holder: str, name: str, depth: int) -> Any:  # noqa: ANN401
        """Return an option behind what the program itself sets it to."""
        sets = [
            value
            for each, attribute, value in self.attributes
            if each == holder
            and attribute in {name, ANY_ATTRIBUTE}
            and (holder, name) not in self.followed
        ]
        if not sets:
            return self._option_value(name, depth)
        self.followed.add((holder, name))  # conditions and values may ask for what it was before
        try:
            running = [(value, self.runs(value, depth)) for value in sets]
            if any(runs is None for _, runs in running):
                raise UnknownValueError("is set on a condition that is not known")
            self.check_any(holder, [value for value, runs in running if runs])
            last = next((value for value, runs in reversed(running) if runs), None)
            return self._option_value(name, depth) if last is None else self.value(last, depth)
        finally:
            self.followed.discard((holder, name))

    def _of_object(self, node: ast.Attribute, depth: int) -> Any:  # noqa: ANN401
        """Return an attribute of a class, of what it makes, of a mapping or of a path.

        Raises:
            NoObjectError: It is of none of these.
            UnknownValueError: It is of one, and not known.
        """
        made = self._class_of(node.value, depth)
        if made is not None:
            return made[0].attribute_of(made[1], node.attr, made[2], depth)
        given = self._given_by_name(node)
        if given is not None:
            return self.value(given, depth)
        try:
            held = self.value(node.value, depth)
        except UnknownValueError:
            raise NoObjectError("is known where it runs") from None
        if isinstance(held, dict) and node.attr in held:
            return known(held[node.attr])
        text = of_text(held, node.attr) if isinstance(held, str) else None
        if text is None:
            raise NoObjectError("is known where it runs")
        return text

    def _given_by_name(self, node: ast.Attribute) -> ast.expr | None:
        """Return what the only call that makes an object is given by an attribute's name, which nothing sets later."""
        if not isinstance(node.value, ast.Name) or node.value.id in self.parameters:
            return None
        holder = node.value.id
        if any(
            each == holder and name in {node.attr, ANY_ATTRIBUTE}
            for each, name, _ in self.attributes
        ):
            return None
        values = self.set_near(node.value)
        only = values[0] if len(values) == 1 else None
        made = isinstance(only, ast.Call) and dotted(only.func).rpartition(".")[2][:1].isupper()
        return named_arguments(only).get(node.attr) if made and isinstance(only, ast.Call) else None

    def _class_of(
        self, node: ast.expr, depth: int
    ) -> tuple["Program", ast.ClassDef, ast.Call | None] | None:
        """Return the class that an expression names or is made of, where it stands, and the call that makes it."""
        if isinstance(node, ast.Call):
            found = self.class_named(dotted(node.func))
            return None if found is None else (*found, node)
        if not isinstance(node, ast.Name) or depth > MOST_MODULES:
            return None
        if node.id in {"self", "cls"}:
            holder = self.places.get(id(node), TOP).holder
            sites = self.sites.get(holder, ())
            made = self.classes.get(holder)
            return None if made is None else (self, made, sites[0] if len(sites) == 1 else None)
        found = self.class_named(node.id)
        if found is not None:
            return (*found, None)
        if node.id in self.parameters:
            value = self.parameters[node.id]
            return self._class_of(value, depth + 1) if isinstance(value, ast.Call) else None
        values = self.set_near(node)
        if not values and node.id in self.borrowed:
            home, name = self.borrowed[node.id]
            return home._class_of(ast.Name(id=name), depth + 1)  # noqa: SLF001 -- of its own kind
        only = values[0] if len(values) == 1 else None
        return self._class_of(only, depth + 1) if isinstance(only, ast.Call) else None

    def class_named(self, name: str, depth: int = 0) -> tuple["Program", ast.ClassDef] | None:
        """Return a class of the program's own or of a module beside it, and in which of both it stands."""
        holder, _, last = name.rpartition(".")
        home = self.modules.get(holder) if holder else self
        if home is None or depth > MOST_MODULES:
            return None
        if last in home.classes:
            return home, home.classes[last]
        if last not in home.borrowed:
            return None
        other, known_as = home.borrowed[last]
        return other.class_named(known_as, depth + 1)

    def extends(self, made: ast.ClassDef, names: Sequence[str], depth: int = 0) -> bool:
        """Tell whether a class is made of one that is called so and is no class of the project's own."""
        for base in (dotted(each) for each in made.bases):
            above = self.class_named(base)
            if above is None and fits(base, names):
                return True
            if above is not None and depth < MOST_MODULES and above[1] is not made:
                home, kind = above
                if home.extends(kind, names, depth + 1):
                    return True
        return False

    def attribute_of(self, made: ast.ClassDef, name: str, call: ast.Call | None, depth: int) -> Any:  # noqa: ANN401
        """Return an attribute of a class, or of what a call makes of it.

        Raises:
            UnknownValueError: It is not known, or set in more than one way.
        """
        again = [
            each
            for holder, each, _ in self.attributes
            if holder not in {"self", "cls"}
            and each in {name, ANY_ATTRIBUTE}
            and (call is not None or holder == made.name)
        ]
        if again:
            raise UnknownValueError("is set in more than one way")
        fields = class_fields(made)
        if call is not None and any(word.arg is None for word in call.keywords):
            raise UnknownValueError(RETURNS)
        placed = dict(zip(fields, () if call is None else call.args, strict=False))
        given = placed | ({} if call is None else named_arguments(call))
        starts = next(
            (each for each in made.body if isinstance(each, Function) and each.name == "__init__"),
            None,
        )
        set_inside = [
            value
            for holder, attribute, value in self.attributes
            if holder == "self"
            and attribute == name
            and self.places.get(id(value), TOP).holder == made.name
        ]
        if len(set_inside) > 1:
            raise UnknownValueError("is set in more than one way")
        if set_inside:
            bound = {} if starts is None else defaults_of(starts)
            bound |= {} if starts is None or call is None else given_by(with_self(call), starts)
            return self._under(bound, set_inside[0], depth)
        if name in given and starts is None:
            return self.value(given[name], depth)
        default = default_of_field(fields.get(name))
        if default is not None:
            return self.value(default, depth)
        for base in made.bases if depth < MOST_MODULES else ():
            above = self.class_named(dotted(base))
            if above is not None:
                return above[0].attribute_of(above[1], name, call, depth + 1)
        raise UnknownValueError("is known where it runs")

    def _under(self, bound: Mapping[str, ast.expr | None], node: ast.expr, depth: int) -> Any:  # noqa: ANN401
        """Return a value where names stand for a function's parameters."""
        outside, self.parameters = self.parameters, {**bound}
        try:
            return self.value(node, depth)
        finally:
            self.parameters = outside

    def _function(self, name: str, depth: int = 0) -> tuple["Program", Function | None]:
        """Return a function of the program's own or of a module beside it, and in which of both it stands."""
        holder, _, last = name.rpartition(".")
        home = self.modules.get(holder) if holder else self
        if home is None or depth > MOST_MODULES:
            return self, None
        if last in home.borrowed and last not in home.functions:
            other, known_as = home.borrowed[last]
            return other._function(known_as, depth + 1)  # noqa: SLF001 -- of its own kind
        return home, home.functions.get(last)

    def _bound(self, call: ast.Call, function: Function, depth: int) -> dict[str, ast.expr | None]:
        """Return a function's parameters as a call gives them; None is not known."""
        bound = defaults_of(function)
        for name, value in given_by(call, function).items():
            bound[name] = ast.Constant(value=self.entry(value, depth))
        return bound

    def _read(self, call: ast.Call, depth: int) -> Any:  # noqa: ANN401
        """Return what a file holds that a program reads as YAML or JSON, by its path or as it has opened it."""
        given = self.opened.get(id(call), call.args[0])
        if isinstance(given, ast.Call) and dotted(given.func) in OPENS and given.args:
            given = given.args[0]
        elif isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute):
            given = given.func.value if given.func.attr in {"open", "read_text"} else given
        try:
            return values_of(self.path, str(self.value(given, depth)))
        except FileError:
            raise UnknownValueError("is in a file that is not at hand") from None

    def _option_value(self, name: str, depth: int) -> Any:  # noqa: ANN401
        """Return what an option is given, or its default."""
        names = self.same.get(name, [name])
        given = given_as(names, self.added.get(name), self.arguments, self.words, self.options)
        if given is not None:
            return given
        default = self.options.get(name)
        if default is None:
            if self.options and name not in self.options and not self._parses():
                raise UnknownValueError("is known where it runs")
            raise NotGivenError(name, own=name in self.options or not self._parses())
        value = self.value(default, depth)
        self.taken[f"--{name}"] = value
        return value

    def _parses(self) -> bool:
        """Tell whether its options are those of classes that a parser is given, the framework's own among them."""
        return any(fits(name, PARSERS) for name in self.sites)

    def of_subscript(self, node: ast.Subscript, depth: int) -> Any:  # noqa: ANN401
        """Return an element, or a variable of the environment."""
        if dotted(node.value) in VARIABLES:
            return self._variable(str(self.value(node.slice, depth)), None)
        return super(Program, self).of_subscript(node, depth)

    def _variable(self, name: str, default: ast.expr | None, depth: int = 0) -> Any:  # noqa: ANN401
        """Return a variable of the environment, or what is taken where it is not set."""
        if name in self.environment:
            return self.environment[name]
        if default is None or name in OF_LAUNCHERS or name.startswith(OF_SLURM):
            raise UnknownValueError(f"is the variable {name}, which is not set")
        value = self.value(default, depth)
        self.taken[name] = value
        return value

    def of_call(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        """Return what a call of a few known functions returns."""
        name = dotted(node.func)
        answer = self.of_machine(node, depth)
        if answer is not None:
            return answer
        if name == "dict":
            return self._made_mapping(node, depth)
        if fits(name, READS_VALUES) and node.args:
            return self._read(node, depth)
        if name in ENVIRONMENT and node.args:
            default = node.args[1] if len(node.args) > 1 else ast.Constant(value=None)
            return self._variable(str(self.value(node.args[0], depth)), default, depth)
        if name == "getattr" and len(node.args) == 3:  # noqa: PLR2004 -- with a default
            return self._attribute_or(node, depth)
        home, function = self._function(name)
        if function is not None:
            return returned_by(home, function, self._bound(node, function, depth), depth)
        return self._of_known(node, name, depth)

    def _made_mapping(self, node: ast.Call, depth: int) -> dict[str, Any]:
        """Return what `dict` makes."""
        made = {} if not node.args else dict(self.mapping_of(node.args[0], depth))
        for word in node.keywords:
            if word.arg is None:
                made |= self.mapping_of(word.value, depth)
            else:
                made[word.arg] = self.entry(word.value, depth)
        return made

    def _of_known(self, node: ast.Call, name: str, depth: int) -> Any:  # noqa: ANN401
        """Return what functions of Python's own make of values, and what typer takes for an option's default."""
        if name in GIVES_DEFAULTS and node.args:
            return self.value(node.args[0], depth)
        method = isinstance(node.func, ast.Attribute) and node.func.attr in {"resolve", "absolute"}
        if method and not node.args:
            return self.value(node.func.value, depth)  # type: ignore[attr-defined]
        given = [self.value(each, depth) for each in node.args]
        unset = [each for each, held in zip(node.args, given, strict=True) if held is None]
        holder = node.func.value if isinstance(node.func, ast.Attribute) else node
        if (
            holder is not node
            and isinstance(holder, ast.Call)
            and self.entry(holder, depth) is None
        ):
            unset.append(holder)
        for each in (each for each in unset if isinstance(each, ast.Call)):
            if dotted(each.func) in ENVIRONMENT:
                self._variable(str(self.value(each.args[0], depth)), None)
        if name in PATHS and given and isinstance(given[0], str):
            return given[0]
        if name == "os.path.dirname" and given:
            return str(Path(str(given[0])).parent)
        if name == "os.path.join" and given:
            return str(Path(*map(str, given)))
        if name in CONVERSIONS and given and not node.keywords:
            return self.converted(CONVERSIONS[name], given)
        return self.of_method(node, given, depth)

    def _attribute_or(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        """Return what `getattr` returns: an attribute that is known, else the default where the object can have none.

        Raises:
            UnknownValueError: It is not known whether the object has it.
        """
        name = self.value(node.args[1], depth)
        try:
            return self.value(
                ast.copy_location(ast.Attribute(value=node.args[0], attr=str(name)), node), depth
            )
        except UnknownValueError:
            holder = dotted(node.args[0])
            if not any(fnmatchcase(holder.lower(), each) for each in OPTIONS):
                raise
            if name in self.options or self.arguments.get(str(name)) is not None:
                raise
        value = self.value(node.args[2], depth)
        self.taken[f"{holder}.{name}"] = value
        return value
