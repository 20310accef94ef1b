"""What a Python program gives to a shell that starts a training by texts of flags, as launchers of slime and miles do.

Its statements are followed one after another from its first line, with the options that stand behind it; nothing is run.
What is not known stands in the text as a variable of the shell that is not set, and is named where a key depends on it.
"""

import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlplan.errors import FileError
from rlplan.planner.configs.reading.python.launcher_errors import (
    NO_VARIABLE,
    StopError,
    asks_for_what_is_not_set,
    handler_of,
    may_fail,
    raised_by,
)
from rlplan.planner.configs.reading.python.launcher_options import OF_CONFIG, LauncherOptions
from rlplan.planner.configs.reading.python.launcher_values import (
    CHANGING,
    ENVIRONMENT,
    MOST_ROUNDS,
    MOST_SHOWN,
    OF_MODULES,
    Code,
    CommandLine,
    Frame,
    Made,
    OwnClass,
    ReturnError,
    as_read,
    rest_of,
    returns,
    variables_of,
)
from rlplan.planner.configs.reading.python.syntax import (
    FOLDERS,
    Function,
    decorators_of,
    defaults_of,
    dotted,
    fits,
    is_program_with,
    module_beside,
    reset_names,
    root_of,
    tree_of,
    written,
)
from rlplan.planner.configs.reading.python.values import (
    NO_CONSTANT,
    Unknown,
    UnknownValueError,
    known,
)
from rlplan.planner.configs.shell.commands import NOT_AT_HAND, RoundError
from rlplan.planner.configs.shell.text import Gap, Text

# The call that starts a training in both (utils/external_utils/command_utils.py), and its parameters; `model_type` up to slime 0.1.
STARTS: Final = "execute_train"
PARAMETERS: Final = ("train_args", "num_gpus_per_node", "megatron_model_type", "train_script")
# A word that is one value that is not known, and names of flags that say nothing of a step's work.
_UNKNOWN: Final = re.compile(r"\$\{(_OF_PROGRAM_\d+)\}")
_BESIDE: Final = re.compile("wandb|mlflow|eval|debug|log|env|dump|prometheus|track")
_LAUNCHES: Final = re.compile(rf"\b{STARTS}\(|\btrain(_async)?\.py\b")
# What tells of a text that it is more than one command.
_SEVERAL: Final = re.compile(r"[;&|\n]")
# Calls that hand a command to a shell, by the last word of their names.
RUNS: Final = ("exec_command*", "system", "Popen", "run", "call", "check_call", "check_output")
MODELS: Final = "scripts/models"
CONFIG: Final = "ExecuteTrainConfig"
NODES_VARIABLE: Final = "SLURM_JOB_NUM_NODES"
SETS_VARIABLES: Final = ("environ.update", "environ.setdefault")
ENTRIES: Final = ("typer.run", "fire.Fire", "Fire", "asyncio.run")
# Statements that are followed, and calls in calls.
MOST_STATEMENTS, MOST_CALLS = 20_000, 30
# Parts of expressions that are looked at in all.
MOST_PARTS: Final = 1_000_000


def is_launcher(path: Path) -> bool:
    """Tell whether a Python program hands a training to a shell: by what it calls, or by the program that it names."""
    return is_program_with(_LAUNCHES, path)


class Launcher(LauncherOptions):
    """Follow a program's statements.

    Attributes:
        commands: What it hands to a shell, each with the line on which it does.
        gaps: Variables of the shell that stand for what is not known.
        left: What was left out since only a run would decide.
        defaults: Options that are not given, with what they are taken to be.
        started_with: Variables that are set before it starts.
        of_classes: What is set of classes behind their text, by their node's identity and the attribute.
        launches: What tells of a command that it starts a training.
    """

    launches: re.Pattern[str] = _LAUNCHES

    def __init__(
        self, path: Path, tree: ast.Module, environment: dict[str, str], words: list[str]
    ) -> None:
        self.path, self.tree, self.environment, self.words = path, tree, environment, words
        self.started_with = dict(environment)
        self.names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
        self.frames: list[Frame] = []
        self.commands: list[tuple[int, str]] = []
        self.gaps: dict[str, Text] = {}
        self.left: list[Gap] = []
        self.beside: dict[Path, Launcher | None] = {}
        self.of_classes: dict[tuple[int, str], Any] = {}
        self.defaults: dict[str, Any] = {}
        self.looked_at = self.looked_before = self.statements = 0
        self.line = 1

    def play(self) -> None:
        """Follow the whole program."""
        try:  # only to find what is no Python though it has its form, as `return` outside of a function
            compile(self.tree, str(self.path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError, MemoryError) as error:
            raise StopError(getattr(error, "lineno", None) or 1, "it is not Python") from None
        self._block(self.tree.body)

    def _block(self, body: Sequence[ast.stmt]) -> None:
        for each in body:
            self._statement(each)

    def _statement(self, node: ast.stmt) -> None:
        self.statements += 1
        self.looked_before += self.looked_at
        self.looked_at = 0
        if self.statements > MOST_STATEMENTS or self.looked_before > MOST_PARTS:
            raise StopError(node.lineno, "it is too long to be followed")
        self.line = node.lineno
        method = getattr(self, f"_play_{type(node).__name__.lower()}", None)
        if method is not None:
            method(node)
        elif not isinstance(node, ast.Pass):
            self._forget([node])

    def _play_functiondef(self, node: Function) -> None:
        self._name(node.name, self.code_of(node))

    _play_asyncfunctiondef = _play_functiondef

    def _play_global(self, node: ast.Global) -> None:
        if self.frames:
            self.frames[-1].elsewhere |= dict.fromkeys(node.names, self.names)

    def _play_nonlocal(self, node: ast.Nonlocal) -> None:
        for name in node.names:
            around = (each for each in self.frames[-1].around if name in each)
            self.frames[-1].elsewhere[name] = next(around, self.names)

    def _play_classdef(self, node: ast.ClassDef) -> None:
        self._name(node.name, OwnClass(self, node))

    def _play_import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Take what modules beside the program set; those of the frameworks are known by what they are called."""
        above = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        for each in node.names:
            name = each.asname or each.name
            whole = self._beside(".".join(filter(None, (above, each.name))))
            if whole is not None:
                self._name(name, whole)
                continue
            home = self._beside(above) if above and each.name not in OF_MODULES else None
            if home is not None and each.name in home.names:
                self._name(name, home.names[each.name])

    _play_importfrom = _play_import

    def like(self, path: Path) -> "Launcher":
        """Return what follows a module beside the program."""
        return Launcher(path, tree_of(path), self.environment, [])

    def _beside(self, name: str) -> "Launcher | None":
        path = module_beside(self.path, name)
        if path is None or path == self.path or "external_utils" in path.parts:
            return None
        if path in self.beside:
            return self.beside[path]
        self.beside[path] = None
        try:
            home = self.like(path)
        except FileError:
            return None
        home.started_with = self.started_with
        home.names["__name__"] = name
        home.gaps, home.commands, home.left = self.gaps, self.commands, self.left
        home.beside = self.beside
        try:
            home.play()
        except (StopError, RecursionError):
            return None
        self.beside[path] = home
        return home

    def _play_assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        if node.value is None:
            return
        value = self.whole(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self.set_target(target, value)

    _play_annassign = _play_assign

    def _play_augassign(self, node: ast.AugAssign) -> None:
        held, more = self.whole(as_read(node.target)), self.whole(node.value)
        if self._added_to(held, node.op, more):
            return
        sides = [
            each.node if isinstance(each, Unknown) and each.node else ast.Constant(each)
            for each in (held, more)
        ]
        sum_of = ast.copy_location(ast.BinOp(left=sides[0], op=node.op, right=sides[1]), node)
        self.set_target(node.target, self.whole(ast.fix_missing_locations(sum_of)))

    @staticmethod
    def _added_to(held: Any, operator: ast.operator, more: Any) -> bool:  # noqa: ANN401
        """Add to a list or a mapping itself, whatever else it is called; tell whether it is such a one."""
        if isinstance(held, list) and isinstance(more, list) and isinstance(operator, ast.Add):
            held.extend(more)
        elif isinstance(held, dict) and isinstance(more, dict) and isinstance(operator, ast.BitOr):
            held.update(more)
        else:
            return False
        return True

    def set_target(self, target: ast.expr, value: Any) -> None:  # noqa: ANN401
        """Set a name, an attribute or an item."""
        if isinstance(target, ast.Name):
            self._name(target.id, value)
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value if isinstance(value, list) and len(value) == len(target.elts) else None
            for place, each in enumerate(target.elts):
                gap = Unknown(NO_CONSTANT, written(each))
                self.set_target(each, gap if parts is None else parts[place])
        elif isinstance(target, ast.Attribute):
            held = self.whole(target.value)
            if isinstance(held, Made):
                held.fields[target.attr] = value
            elif isinstance(held, dict):
                held[target.attr] = value
            elif isinstance(held, OwnClass):
                held.home.of_classes[id(held.node), target.attr] = value
        elif isinstance(target, ast.Subscript):
            self._set_item(target, value)

    def _set_item(self, target: ast.Subscript, value: Any) -> None:  # noqa: ANN401
        held, key = self.whole(target.value), self.whole(target.slice)
        if dotted(target.value).endswith("environ") and isinstance(value, str):
            self.environment[str(key)] = value
        elif isinstance(held, dict) and not isinstance(key, Unknown):
            held[str(key)] = value
        elif isinstance(held, list) and held:
            whole = isinstance(key, int) and -len(held) <= key < len(held)
            held[:] = held if whole else [Unknown(NO_CONSTANT, written(target))]
            held[key if whole else 0] = value if whole else held[0]

    def _name(self, name: str, value: Any) -> None:  # noqa: ANN401
        frame = self.frames[-1] if self.frames else None
        (self.names if frame is None else frame.elsewhere.get(name, frame.held))[name] = value

    def _play_if(self, node: ast.If) -> None:
        try:
            chosen = node.body if self.truth(node.test) else node.orelse
        except UnknownValueError as error:
            self._undecided(node, [node.body, node.orelse], str(error))
            return
        self._block(chosen)

    def _undecided(
        self, node: ast.If | ast.Match, bodies: Sequence[Sequence[ast.stmt]], reason: str
    ) -> None:
        """Follow the first of some blocks that hands something to a shell; else nobody knows what they set.

        What they only add to a text is left out of it.
        """
        test = node.test if isinstance(node, ast.If) else node.subject
        self.left.append(Gap(line=node.lineno, source=written(test)[:MOST_SHOWN], reason=reason))
        starting = self.starting_of(bodies)
        if starting is not None:
            self._block(starting)
            return
        if self.frames and any(map(returns, bodies)):
            self.frames[-1].undecided = f"is what {written(test)[:MOST_SHOWN]} decides"
        parts = (part for each in bodies for part in each)
        self._forget([each for each in parts if not self.only_adds(each)])

    def starting_of(self, bodies: Sequence[Sequence[ast.stmt]]) -> Sequence[ast.stmt] | None:
        """Return the first of some blocks in which a start stands; None where it stands in none."""
        return next((each for each in bodies if self.starts_in(each)), None)

    def only_adds(self, node: ast.stmt) -> bool:
        """Tell whether a statement only adds to a text or a list, which is left out where nobody knows whether it runs."""
        if isinstance(node, ast.AugAssign):
            return isinstance(self.whole(as_read(node.target)), str | list)
        call = node.value if isinstance(node, ast.Expr) else None
        method = call.func if isinstance(call, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr in CHANGING:
            return isinstance(self.whole(method.value), list)
        return isinstance(node, ast.Expr)

    def starts_in(self, body: Sequence[ast.stmt]) -> bool:
        """Tell whether a start stands in a block."""
        calls = (each for part in body for each in ast.walk(part) if isinstance(each, ast.Call))
        return any(dotted(each.func).rpartition(".")[2] == STARTS for each in calls)

    def _play_match(self, node: ast.Match) -> None:
        try:
            subject = known(self.value(node.subject))
            for case in node.cases:
                fits_it = self.fits_case(case.pattern, subject)
                if fits_it and (case.guard is None or self.truth(case.guard)):
                    self._block(case.body)
                    return
        except UnknownValueError as error:
            self._undecided(node, [case.body for case in node.cases], str(error))

    def _play_for(self, node: ast.For) -> None:
        values = self.whole(node.iter)
        rounds = list(values) if isinstance(values, list | dict | str) else None
        if rounds is None or len(rounds) > MOST_ROUNDS:
            self._forget([node])
            return
        for each in rounds:
            self.set_target(node.target, each)
            try:
                self._block(node.body)
            except RoundError as left:
                if left.last:
                    return
        self._block(node.orelse)

    def _play_break(self, node: ast.Break | ast.Continue) -> None:
        raise RoundError(last=isinstance(node, ast.Break))

    _play_continue = _play_break

    def _play_with(self, node: ast.With) -> None:
        for each in node.items:
            if each.optional_vars is not None:
                self.set_target(each.optional_vars, self.whole(each.context_expr))
        self._block(node.body)

    def _play_try(self, node: ast.Try) -> None:
        """Follow a block to its end or to the error that it meets; nobody knows what handlers set that may come to act."""
        caught = handler_of(node, NO_VARIABLE)
        try:
            for each in node.body:
                if caught is not None and asks_for_what_is_not_set(each, self.environment):
                    raise StopError(each.lineno, written(each), NO_VARIABLE)
                self._statement(each)
        except StopError as stop:
            if (handler := handler_of(node, stop.kind)) is None:
                raise
            self._block([*handler.body, *node.finalbody])
            return
        self._block(node.orelse)
        held = self.frames[-1].held if self.frames else self.names
        if may_fail(node.body, held, self.path):
            if self.frames and returns([part for each in node.handlers for part in each.body]):
                what = written(node.body[0])[:MOST_SHOWN]
                self.frames[-1].undecided = f"is what becomes of {what}"
            self._forget(node.handlers)
        self._block(node.finalbody)

    def _play_expr(self, node: ast.Expr) -> None:
        self.whole(node.value)

    def _play_return(self, node: ast.Return) -> None:
        raise ReturnError(None if node.value is None else self.whole(node.value))

    def _play_raise(self, node: ast.Raise) -> None:
        raise StopError(node.lineno, written(node), raised_by(node))

    def _play_assert(self, node: ast.Assert) -> None:
        try:
            holds = self.truth(node.test)
        except UnknownValueError:
            return
        if not holds and not self._asks_for_what_is_not_set(node.test):
            raise StopError(node.lineno, written(node), "AssertionError")

    def _asks_for_what_is_not_set(self, test: ast.expr) -> bool:
        """Tell whether a test only asks for a value that is there where it runs: a name that is None or empty here."""
        named = test.left if isinstance(test, ast.Compare) else test
        held = self.whole(named) if isinstance(named, ast.Name) else ()
        return held is None or held == ""

    def _forget(self, nodes: Iterable[ast.AST]) -> None:
        for each in nodes:
            changed = (part for part in ast.walk(each) if isinstance(part, ast.Attribute))
            names = (root_of(part.value) for part in changed if part.attr in CHANGING)
            for name in (*reset_names(each), *filter(None, names)):
                self._name(name, Unknown("is set where only a run would decide", name))

    # Calls.

    def of_call(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        """Return what a call returns, and follow what it does."""
        node = self._with_holder(node, depth)
        name = dotted(node.func)
        last = name.rpartition(".")[2]
        if last == STARTS:
            return self._start(node, depth)
        if last in {"exit", "_exit"}:
            self.placed_of(node.args, depth)  # as in sys.exit(main())
            raise StopError(node.lineno, written(node))
        if fits(name, ENTRIES) and node.args:
            return self._enter(node.args[0], depth)
        own = self._own(node.func, depth)
        if own is not None:
            return self._called(own, node, depth)
        special = getattr(self, f"_call_{last.lower()}", None)
        try:
            return self._of_others(node, name, depth) if special is None else special(node, depth)
        except (TypeError, ValueError, LookupError, AttributeError):
            raise UnknownValueError(NO_CONSTANT) from None  # given otherwise than it takes it

    def _with_holder(self, node: ast.Call, depth: int) -> ast.Call:
        """Return a call with what its method is called of, where that changes something each time that it is looked at: `l.pop().strip()`."""
        function = node.func
        if not isinstance(function, ast.Attribute):
            return node
        calls = (each.func for each in ast.walk(function.value) if isinstance(each, ast.Call))
        if not any(isinstance(each, ast.Attribute) and each.attr in CHANGING for each in calls):
            return node
        held = ast.Constant(self.entry(function.value, depth))
        once = ast.Call(ast.Attribute(held, function.attr, ast.Load()), node.args, node.keywords)
        return ast.fix_missing_locations(ast.copy_location(once, node))

    def _of_others(self, node: ast.Call, name: str, depth: int) -> Any:  # noqa: ANN401
        """Return what a call returns of a function that is not the program's own."""
        last = name.rpartition(".")[2]
        if last in OF_MODULES and not isinstance(OF_MODULES[last], dict):
            return OF_MODULES[last]
        if fits(name, ENVIRONMENT) and node.args:
            found = self.environment.get(str(self.value(node.args[0], depth)))
            default = node.args[1] if len(node.args) > 1 else ast.Constant(value=None)
            return found if found is not None else self.value(default, depth)
        if fits(name, SETS_VARIABLES):
            return self._set_variables(node, last, depth)
        if last == CONFIG:
            return Made(None, self._config() | self.named_of(node, depth))
        if fits(last, RUNS) and node.args:
            return self._hand_on(node, depth)
        return self.of_known(node, last, depth)

    def _set_variables(self, node: ast.Call, last: str, depth: int) -> None:
        """Set variables of the environment as `os.environ` is told to, as far as they are known."""
        given = self.named_of(node, depth)
        placed = self.placed_of(node.args, depth)
        if last == "update":
            given |= placed[0] if placed and isinstance(placed[0], dict) else {}
        elif isinstance(placed[0], str) and placed[0] not in self.environment:
            given[placed[0]] = placed[1]
        self.environment |= {k: each for k, each in given.items() if isinstance(each, str)}

    def _own(self, function: ast.expr, depth: int) -> Any:  # noqa: ANN401
        if isinstance(function, ast.Name | ast.Attribute):
            held = self.entry(function, depth)
            return held if isinstance(held, Code | OwnClass | CommandLine) else None
        return None

    def _called(self, own: Any, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        if isinstance(own, CommandLine):
            return self._enter_commands(node)
        placed = self.placed_of(node.args, depth)
        given = self.named_of(node, depth)
        if isinstance(own, OwnClass):
            return self._made(own, placed, given)
        return self._call(own, placed, given)

    def _call(self, code: Code, placed: list[Any], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
        home, node = code.home, code.node
        if len(self.frames) > MOST_CALLS:
            raise UnknownValueError("goes around in circles")
        names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        if code.bound is not None:
            placed = [code.bound, *placed]
        known_names = {**dict(zip(names, placed, strict=False)), **given}
        frame = Frame({}, code.around)
        home.frames.append(frame)
        line, self.line = self.line, node.lineno
        try:
            frame.held |= {
                name: known_names[name] if name in known_names
                else code.defaults[name] if name in code.defaults
                else Unknown("is known where it runs", name) if default is None
                else home.whole(default)
                for name, default in defaults_of(node).items()
            }  # fmt: skip
            frame.held |= rest_of(node, placed, given)
            if isinstance(node, ast.Lambda):
                return home.value(node.body)
            home._block(node.body)  # noqa: SLF001 -- of its own kind
        except ReturnError as left:
            return known(Unknown(frame.undecided, "") if frame.undecided else left.value)
        finally:
            home.frames.pop()
            self.line = line
        return None

    def _kinds(self, kind: OwnClass | None) -> Iterator[OwnClass]:
        """Yield a class and those that it is made of, as far as they are the program's own, the nearest first."""
        while kind is not None:
            yield kind
            above = (self._own(each, 0) for each in kind.node.bases)
            kind = next(
                (each for each in above if isinstance(each, OwnClass) and each != kind), None
            )

    def _made(self, kind: OwnClass, placed: list[Any], given: Mapping[str, Any]) -> Made:
        """Return what a class makes: its fields by their defaults and what is given, and what it does when it is made."""
        made = Made(kind)
        kinds = list(self._kinds(kind))
        if any(dotted(base).endswith(CONFIG) for each in kinds for base in each.node.bases):
            made.fields |= self._config()
        for each in reversed(kinds):
            for part in each.node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    made.fields[part.target.id] = each.home._default(part)  # noqa: SLF001
        made.fields |= dict(zip(made.fields, placed, strict=False)) | dict(given)
        for name in ("__init__", "__post_init__"):
            code = self._method(made, name)
            if code is not None:
                self._call(code, placed if name == "__init__" else [], given)
        return made

    def attribute_of(self, made: Made, name: str) -> Any:  # noqa: ANN401
        """Return an attribute of an object: a field, or a method, property or constant of its class."""
        if name in made.fields:
            return known(made.fields[name])
        for kind in self._kinds(made.kind):
            if (id(kind.node), name) in kind.home.of_classes:
                return known(kind.home.of_classes[id(kind.node), name])
            for part in kind.node.body:
                if isinstance(part, Function) and part.name == name:
                    code = Code(kind.home, part, made)
                    is_value = any(each.endswith("property") for each, _ in decorators_of(part))
                    return self._call(code, [], {}) if is_value else code
                if isinstance(part, ast.Assign) and name in map(dotted, part.targets):
                    return kind.home.value(part.value)
        raise UnknownValueError("is known where it runs")

    def _method(self, made: Made, name: str) -> Code | None:
        try:
            held = self.attribute_of(made, name)
        except UnknownValueError:
            return None
        return held if isinstance(held, Code) else None

    def _default(self, part: ast.AnnAssign) -> Any:  # noqa: ANN401
        value = part.value
        if isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] == "field":
            named = {word.arg: word.value for word in value.keywords}
            factory = named.get("default_factory")
            if factory is not None:
                call = ast.Call(func=factory, args=[], keywords=[])
                made = factory.body if isinstance(factory, ast.Lambda) else call
                return self.whole(ast.fix_missing_locations(ast.copy_location(made, factory)))
            value = named.get("default")
        if value is None:
            return Unknown("is known where it runs", written(part.target))
        return self.whole(value)

    def _config(self) -> dict[str, Any]:
        nodes = self.environment.get(NODES_VARIABLE, "1")
        return dict(OF_CONFIG) | {"num_nodes": int(nodes) if nodes.isdecimal() else 1}

    # What is handed to a shell.

    def _start(self, node: ast.Call, depth: int) -> None:
        given = dict(zip(PARAMETERS, [self.entry(each, depth) for each in node.args], strict=False))
        given |= self.named_of(node, depth)
        arguments = given.get("train_args")
        if not isinstance(arguments, str):
            reason = getattr(arguments, "reason", NO_CONSTANT)
            raise StopError(node.lineno, f"the flags of {written(node)[:MOST_SHOWN]} {reason}")
        self._check_flags(arguments, node.lineno)
        script = given.get("train_script", "train.py")
        script = script if isinstance(script, str) else "train.py"
        before, flags = self._model_flags(given.get(PARAMETERS[2], given.get("model_type")))
        before += variables_of(given.get("extra_env_vars"))
        self.commands.append((node.lineno, f"{before}python3 {script} {flags} {arguments}"))

    def _check_flags(self, text: str, line: int) -> None:
        """Stop where flags are not known that may say how much work there is; name others.

        Raises:
            StopError: They are named.
        """
        before = ""
        for word in text.split():
            found = _UNKNOWN.search(word)
            is_flags = found is not None and (
                (found[0] == word and not before.startswith("--"))
                or word.startswith(f"{found[0]}--")
                or (word.startswith("--") and "=" not in word)
            )
            if found is not None and is_flags:
                gap = self.gaps[found[1]].gaps[0]
                if _BESIDE.search(gap.source.lower()) is None:
                    reason = f"the flags {gap.source} (line {gap.line}) are not known: {gap.reason}"
                    raise StopError(line, reason)
                self.left.append(gap)
            before = word

    def _model_flags(self, model: Any) -> tuple[str, str]:  # noqa: ANN401
        """Return what is to be read in before a start for the flags of a model's file, and what stands for them."""
        if model is None:
            return "", ""
        if not isinstance(model, str):
            return f'source "{MODELS}/$_OF_PROGRAM.sh"; ', '"${MODEL_ARGS[@]}"'
        folders = list(self.path.resolve().parents)[: FOLDERS + 1]
        files = [folder / MODELS / f"{model}.sh" for folder in folders]
        found = next((each for each in files if each.is_file()), None)
        written_in = [each.with_suffix("").with_name(f"{model}.py") for each in files]
        program = next((each for each in written_in if each.is_file()), None)
        if found is None and program is not None:
            flags = self._flags_of_program(program)
            if flags is not None:
                return "", flags
        file = f"{MODELS}/{model}.sh" if found is None else str(found)
        return f'source "{file}"; ', '"${MODEL_ARGS[@]}"'

    def _call_shell_safe_model_args(self, node: ast.Call, depth: int) -> str:
        """Return the flags of a model's file; none where it is not at hand, which is named."""
        before, flags = self._model_flags(self.value(node.args[0], depth))
        if before:
            gap = Gap(line=node.lineno, source=written(node)[:MOST_SHOWN], reason=NOT_AT_HAND)
            self.left.append(gap)
        return "" if before else flags

    def _flags_of_program(self, path: Path) -> str | None:
        """Return the flags of a model that a program of miles' returns (scripts/models/*.py: model_args); None if not known."""
        try:
            home = self.like(path)
            home.names["__name__"] = path.stem
            home.play()
            code = home.names.get("model_args")
            found = self._call(code, [], {}) if isinstance(code, Code) else None
        except (FileError, StopError, UnknownValueError):
            return None
        words = found.split() if isinstance(found, str) and "${" not in found else []
        return shlex.join(words) or None

    def _call_load_sibling_model_args(self, node: ast.Call, depth: int) -> str:
        model = self.value(node.args[1], depth)
        path = self.path.with_name(f"{model}.py")
        try:
            home = self.like(path)
            home.names["__name__"] = path.stem
            home.play()
        except (FileError, StopError):
            raise UnknownValueError("is in a file that is not at hand") from None
        code = home.names.get("model_args")
        if not isinstance(code, Code):
            raise UnknownValueError(NO_CONSTANT)
        return str(self._call(code, [], self.named_of(node, depth)))

    def _hand_on(self, node: ast.Call, depth: int) -> None:
        """Note a command that a shell is given, where it starts a training; what it prints is not known."""
        held = self.entry(node.args[0], depth)
        if isinstance(held, list) and held[1:2] in (["-c"], ["-lc"]):
            held = held[2] if len(held) > 2 else ""  # noqa: PLR2004 -- a shell, -c and its command
        if isinstance(held, list):
            held = " ".join(
                self.gap(node.args[0], each.reason) if isinstance(each, Unknown)
                else str(each) if "${_OF_PROGRAM_" in str(each) else shlex.quote(str(each))
                for each in held
            )  # fmt: skip
        launches = self.launches.search(held) if isinstance(held, str) else None
        if isinstance(held, str) and launches is not None:
            self._check_flags(held[launches.end() :], node.lineno)
            variables = self._variables_of(node, depth)
            if variables and _SEVERAL.search(held):
                variables = f"export {variables.rstrip()}; "
            self.commands.append((node.lineno, f"{variables}{held}"))
        raise UnknownValueError("is what a command prints")

    def _variables_of(self, node: ast.Call, depth: int) -> str:
        """Return the variables that a command gets beside those which the program was started with: by `env`, or those that it has set."""
        given = next((word.value for word in node.keywords if word.arg == "env"), None)
        held = self.environment if given is None else self.entry(given, depth)
        if not isinstance(held, dict):
            if isinstance(held, Unknown):
                self.left.append(Gap(line=node.lineno, source=held.source, reason=held.reason))
            return ""
        changed = {k: each for k, each in held.items() if self.started_with.get(k) != each}
        unknown = "".join(
            f"{name}={self.gap(each.node or node, each.reason)} "
            for name, each in changed.items()
            if isinstance(each, Unknown) and name.isidentifier()
        )
        return variables_of(changed) + unknown

    # Command lines.

    def _enter(self, node: ast.expr, depth: int) -> Any:  # noqa: ANN401
        """Follow a function that is given the program's options; one of another's, as `asyncio.run` is given it."""
        if isinstance(node, ast.Call):
            return self.value(node, depth)
        own = self._own(node, depth)
        return self._started(own) if isinstance(own, Code) else None

    def _enter_commands(self, node: ast.Call) -> Any:  # noqa: ANN401
        """Follow the command that the program's first word names; without one, the last that starts a training."""
        name = dotted(node.func)
        codes = [each for each in self.names.values() if isinstance(each, Code)]
        own = {
            each.node.name: each
            for each in codes
            if isinstance(each.node, Function)
            and any(put.rpartition(".")[0] == name for put, _ in decorators_of(each.node))
        }
        first = self.words[0].replace("-", "_") if self.words else ""
        if first in own:
            del self.words[0]
            return self._started(own[first])
        for code in reversed(own.values()):
            self._started(code)
            if self.commands:
                break
        return None

    def _started(self, code: Code) -> Any:  # noqa: ANN401
        """Follow a function whose parameters are options, or fields of a class that is its only one."""
        assert not isinstance(code.node, ast.Lambda)
        parameters = [*code.node.args.args, *code.node.args.kwonlyargs]
        kind = None
        if len(parameters) == 1 and parameters[0].annotation is not None:
            kind = code.home._own(parameters[0].annotation, 0)  # noqa: SLF001 -- of its own kind
        if isinstance(kind, OwnClass):
            given = self._options(self._fields_of(kind))
            made = self._made(kind, [], given)
            self._take(made.fields, given)
            return self._call(code, [made], {})
        given = self._options({each.arg: None for each in parameters})
        self._take(
            {
                name: self.whole(default)
                for name, default in defaults_of(code.node).items()
                if default is not None
            },
            given,
        )
        return self._call(code, [], given)

    def _fields_of(self, kind: OwnClass) -> dict[str, object]:
        fields = dict.fromkeys(OF_CONFIG)
        for each in self._kinds(kind):
            for part in each.node.body:
                if isinstance(part, ast.AnnAssign):
                    fields[dotted(part.target)] = None
        return fields
