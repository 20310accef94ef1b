"""What the calls of a Python program are given where its statements are followed one after another, as far as that is known.

The text of a program says by itself what is a constant. What a command line, a file of values or the arguments of
functions come to is known only along the way; nothing is run for it.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from rlplan.errors import FileError
from rlplan.planner.configs.reading.python.launcher import Launcher
from rlplan.planner.configs.reading.python.launcher_errors import StopError
from rlplan.planner.configs.reading.python.launcher_values import (
    ENVIRONMENT,
    MOST_PARTS,
    Code,
    CommandLine,
    Made,
    OwnClass,
    once_each,
)
from rlplan.planner.configs.reading.python.program import MOST_MODULES
from rlplan.planner.configs.reading.python.syntax import (
    Function,
    decorators_of,
    defaults_of,
    dotted,
    fits,
    handed_back,
    tree_of,
    values_of,
    written,
)
from rlplan.planner.configs.reading.python.unfollowed import held_by_parts, lose_changed
from rlplan.planner.configs.reading.python.values import (
    DEEPEST,
    HYDRA,
    OF_LAUNCHERS,
    OF_SLURM,
    RETURNS,
    Unknown,
    UnknownValueError,
    composed_by_hydra,
    known,
)

# Libraries whose modules may stand beside a program, and are never followed.
LIBRARIES: Final = ("trl", "transformers", "torch", "accelerate", "peft", "datasets", "unsloth", "vllm", "deepspeed")  # fmt: skip
# How functions are called elsewhere by what is put around them, as Modal and Ray do.
SENT_ELSEWHERE: Final = ("remote", "local", "spawn")
STARTED_BY_ITSELF: Final = ("*.local_entrypoint",)
# What leaves a function as it is for who calls it.
LEAVES_AS_IT_IS: Final = (
    *STARTED_BY_ITSELF, "*.function", "*.cls", "*.method", "ray.remote", "remote", "staticmethod", "classmethod", "property",
    "*.no_grad", "*.inference_mode", "record", "*.record", "cache", "*.cache", "lru_cache", "*.lru_cache", "*command",
)  # fmt: skip
NAMES_MODEL: Final = ("model_name", "pretrained_model_name_or_path", "model_name_or_path")
# Types by which programs ask what a value is.
KINDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict, "tuple": list,
}  # fmt: skip
TWICE: Final = "is called in more than one way"


class _Whatever:
    """Stand for the parameters of a library's class: it is taken to have each that a program asks for."""

    def __contains__(self, _name: object) -> bool:
        return True


WHATEVER: Final = _Whatever()


@dataclass(frozen=True, slots=True)
class _Opened:
    """Stand for a file that the program has opened.

    Attributes:
        path: As the program names it.
    """

    path: str


def played_values(
    path: Path,
    trees: Mapping[Path, ast.Module],
    calls: Sequence[str],
    words: Sequence[object],
    environment: Mapping[str, str],
) -> tuple[Mapping[int, Any], str]:
    """Return what calls are given, by the identity of each argument's expression; and options that are as the program has them.

    Args:
        trees: Programs whose expressions are asked for, by their paths from the root.
        calls: Patterns of the names of the calls that matter.
        words: What stands behind the program on its command line.
        environment: Variables that are set before it starts.
    """
    if any(isinstance(each, Unknown) for each in words):
        return {}, ""
    tree = trees.get(path.resolve()) or tree_of(path)
    program = Played(path, tree, dict(environment), [str(each) for each in words])
    program.calls, program.given, program.trees = tuple(calls), {}, trees
    try:
        program.play()
        if not program.given:
            program.start_by_itself()
    except (StopError, FileError, RecursionError):
        pass  # what was given before counts
    return program.given, program.taken()


class Played(Launcher):
    """Follow a program's statements, and note what calls are given.

    Attributes:
        calls: Patterns of the names of those that matter.
        given: What they are given, by the identity of the expression; known or not.
        trees: Modules that are parsed already, by their paths from the root.
    """

    calls: tuple[str, ...]
    given: dict[int, Any]
    trees: Mapping[Path, ast.Module]

    def _beside(self, name: str) -> "Launcher | None":
        """Return a module beside the program, but for those of libraries, whose sources may lie there."""
        is_of_library = name.partition(".")[0] in LIBRARIES
        return None if is_of_library or len(self.beside) > MOST_MODULES else super()._beside(name)

    def like(self, path: Path) -> "Launcher":
        """Return what follows a module beside the program."""
        tree = self.trees.get(path.resolve()) or tree_of(path)
        home = Played(path, tree, self.environment, [])
        home.calls, home.given, home.defaults = self.calls, self.given, self.defaults
        home.trees = self.trees
        return home

    def start_by_itself(self) -> None:
        """Follow the functions that what is put around them starts."""
        for code in [each for each in self.names.values() if isinstance(each, Code)]:
            if isinstance(code.node, ast.Lambda):
                continue
            if any(fits(name, STARTED_BY_ITSELF) for name, _ in decorators_of(code.node)):
                self._started(code)

    def _play_functiondef(self, node: Function) -> None:
        """Take a function for what it is written as, unless something that is not known is put around it."""
        around = [*decorators_of(node)]
        if all(fits(name, LEAVES_AS_IT_IS) for name, _ in around):
            super()._play_functiondef(node)
        elif len(around) == 1 and around[0][1] is not None and fits(around[0][0], HYDRA):
            held = composed_by_hydra(self.path, around[0][1], self.words)
            first = dict.fromkeys([*defaults_of(node)][:1], held or Unknown(RETURNS, node.name))
            self.set_target(
                ast.Name(id=node.name), Code(self, node, around=self.around(), defaults=first)
            )
        else:
            self.set_target(ast.Name(id=node.name), Unknown(RETURNS, node.name))

    _play_asyncfunctiondef = _play_functiondef

    def starts_in(self, body: Sequence[ast.stmt]) -> bool:
        """Tell whether one of the calls that matter stands in a block."""
        return self._matters(body)

    def starting_of(self, bodies: Sequence[Sequence[ast.stmt]]) -> Sequence[ast.stmt] | None:
        """Return the block in which a call that matters stands, or the only one that leads to such a call by the program's functions.

        Of several that lead to one, nobody knows what it is given.
        """
        leading = [each for each in bodies if self._matters(self._called_by(each))]
        found = super().starting_of(bodies)
        return leading[0] if found is None and len(leading) == 1 else found

    def _matters(self, body: Sequence[ast.stmt]) -> bool:
        return any(fits(dotted(each.func), self.calls) for each in _calls_in(body))

    def _called_by(self, body: Sequence[ast.stmt]) -> Sequence[ast.stmt]:
        """Return the statements of the program's functions that a block calls by their names."""
        names = [*self.around(), self.names]
        called = {dotted(each.func) for each in _calls_in(body)}
        own = [held[name] for held in names for name in called if name in held]
        return [
            each.node for each in own if isinstance(each, Code) and isinstance(each.node, Function)
        ]

    def set_target(self, target: ast.expr, value: Any) -> None:  # noqa: ANN401
        """Set a name, an attribute or an item; nothing of a mapping is known once one that is not known is set."""
        super().set_target(target, value)
        if isinstance(target, ast.Subscript) and isinstance(self.whole(target.slice), Unknown):
            held = self.whole(target.value)
            if isinstance(held, dict):
                held |= dict.fromkeys(held, Unknown(RETURNS, written(target)))

    def only_adds(self, node: ast.stmt) -> bool:
        """Tell of no statement that it only adds to a text: what it changes counts."""
        del node
        return False

    def _forget(self, nodes: Iterable[ast.AST]) -> None:
        """Know nothing of what statements may change that are not followed, whatever else it is called."""
        there = list(nodes)
        whole = ast.List(elts=cast(list[ast.expr], there))  # one may change what another has named
        kept = dict(held_by_parts(self, whole))
        lose_changed(self, whole)
        super()._forget(there)
        for name, held in kept.items():
            self.set_target(ast.Name(id=name), held)

    def of_call(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        """Return what a call returns; of one that matters note what it is given."""
        name = dotted(node.func)
        last = name.rpartition(".")[2]
        if fits(name, self.calls):
            for each in (*node.args, *(word.value for word in node.keywords)):
                self._note(each, self.entry(each, depth))
            own = self._own(node.func, depth)
            if isinstance(own, OwnClass):
                return self._called(own, node, depth)
            if handed_back(node) is node:
                return self._loaded(node, depth)
        answer = self.of_machine(node, depth)
        if answer is not None:
            return answer
        if fits(name, ENVIRONMENT) and node.args:
            self._check_variable(str(self.value(node.args[0], depth)))
        if last in SENT_ELSEWHERE and isinstance(node.func, ast.Attribute):
            own = self._own(node.func.value, depth)
            if isinstance(own, Code):
                return self._called(own, node, depth)
        return super().of_call(node, depth)

    def _of_others(self, node: ast.Call, name: str, depth: int) -> Any:  # noqa: ANN401
        """Return what a call returns of a function that is not the program's own, the model that it hands back among them."""
        if handed_back(node) is not node:
            return self._handed_back(node, depth)
        return super()._of_others(node, name, depth)

    def _handed_back(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        """Return the model that a call hands back; what else it is given may be made there, as adapters are."""
        for each in (*node.args[1:], *(word.value for word in node.keywords)):
            self.entry(each, depth)
        return self.value(handed_back(node), depth)

    def _loaded(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        """Return for a model that is loaded what it is called; of Unsloth's with its tokenizer behind it."""
        name = dotted(node.func)
        if not name.endswith(".from_pretrained"):
            raise UnknownValueError(RETURNS)
        named = next((word.value for word in node.keywords if word.arg in NAMES_MODEL), None)
        first = node.args[0] if node.args else named
        if first is None:
            raise UnknownValueError(RETURNS)
        held = self.entry(first, depth)
        return [held, Unknown(RETURNS, name)] if name.startswith("Fast") else known(held)

    def _check_variable(self, name: str) -> None:
        """Refuse a variable's default where whatever launches the program sets it."""
        of_launchers = name in OF_LAUNCHERS or name.startswith(OF_SLURM)
        if of_launchers and name not in self.environment:
            raise UnknownValueError(f"is the variable {name}, which is not set")

    def _note(self, node: ast.expr, held: Any) -> None:  # noqa: ANN401
        before = self.given.get(id(node), held)
        alike = before is held or (type(before) is type(held) and before == held)
        self.given[id(node)] = held if alike else Unknown(TWICE, written(node))

    def of_attribute(self, node: ast.Attribute, depth: int) -> Any:  # noqa: ANN401
        """Return an attribute of an object, or a data type by its name."""
        if dotted(node).rpartition(".")[0] == "torch":
            return node.attr
        if node.attr in {"__dataclass_fields__", "__annotations__"}:
            own = self._own(node.value, depth)
            return self._names_of(own, node.attr) if isinstance(own, OwnClass) else WHATEVER
        if node.attr == "parameters" and self.entry(node.value, depth) is WHATEVER:
            return WHATEVER
        return super().of_attribute(node, depth)

    def _names_of(self, own: OwnClass, attribute: str) -> dict[str, Any]:
        """Return the fields of a class of the program's own; what they are of is not known.

        Raises:
            UnknownValueError: Others are those of a library's class of which it is made.
        """
        kinds = [own] if attribute == "__annotations__" else list(self._kinds(own))
        if attribute != "__annotations__" and kinds[-1].node.bases:
            raise UnknownValueError(RETURNS)
        annotated = (part for each in kinds for part in each.node.body)
        names = (dotted(part.target) for part in annotated if isinstance(part, ast.AnnAssign))
        return {name: Unknown(RETURNS, name) for name in names}

    # Calls of a few functions of Python's own.

    def _call_signature(self, node: ast.Call, _depth: int) -> _Whatever:
        own = self._own(node.args[0], 0)
        if own is not None:
            raise UnknownValueError(RETURNS)
        return WHATEVER

    def _call_fields(self, node: ast.Call, depth: int) -> _Whatever:
        return self._call_signature(node, depth)

    def _call_hasattr(self, node: ast.Call, depth: int) -> bool:
        held = self.entry(node.args[0], depth)
        if isinstance(held, Made):
            return str(self.value(node.args[1], depth)) in held.fields
        raise UnknownValueError(RETURNS)

    def _call_set(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        held = self.value(node.args[0], depth) if node.args else []
        return held if isinstance(held, _Whatever) else once_each(list(held))

    def _call_isinstance(self, node: ast.Call, depth: int) -> bool:
        held = self.value(node.args[0], depth)
        named = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
        kinds = [KINDS[dotted(each)] for each in named]
        of_several = {"list", "tuple"} & {*map(dotted, named)}
        if isinstance(held, list) and len(of_several) == 1:
            raise UnknownValueError(RETURNS)  # both are lists here
        return any(isinstance(held, each) for each in kinds)

    def _call_vars(self, node: ast.Call, depth: int) -> dict[str, Any]:
        held = self.value(node.args[0], depth)
        if not isinstance(held, Made):
            raise UnknownValueError(RETURNS)
        return held.fields

    def _call___setitem__(self, node: ast.Call, _depth: int) -> None:
        if isinstance(node.func, ast.Attribute):
            target = ast.Subscript(value=node.func.value, slice=node.args[0], ctx=ast.Store())
            self.set_target(ast.copy_location(target, node), self.whole(node.args[1]))

    def _call_open(self, node: ast.Call, depth: int) -> _Opened:
        holder = node.func.value if isinstance(node.func, ast.Attribute) else node.args[0]
        if dotted(holder) in {"io", "codecs"}:
            holder = node.args[0]
        return _Opened(str(self.value(holder, depth)))

    def _call_read_text(self, node: ast.Call, depth: int) -> _Opened:
        return self._call_open(node, depth)

    def _call_read(self, node: ast.Call, depth: int) -> _Opened:
        held = self.value(node.func.value, depth) if isinstance(node.func, ast.Attribute) else None
        if not isinstance(held, _Opened):
            raise UnknownValueError(RETURNS)
        return held

    def _call_safe_load(self, node: ast.Call, depth: int) -> Any:  # noqa: ANN401
        held = self.value(node.args[0], depth)
        of_path = isinstance(held, str) and dotted(node.func).startswith("OmegaConf")
        if not isinstance(held, _Opened) and not of_path:
            raise UnknownValueError(RETURNS)
        try:
            return values_of(self.path, held.path if isinstance(held, _Opened) else held)
        except FileError:
            raise UnknownValueError("is in a file that is not at hand") from None

    _call_load = _call_full_load = _call_loads = _call_safe_load

    def _call_exists(self, node: ast.Call, depth: int) -> bool:
        """Tell whether a file of values is there; what else may be there where it runs nobody knows."""
        of_module = dotted(node.func).startswith("os.")
        holder = node.args[0] if of_module else node.func.value  # type: ignore[attr-defined]
        try:
            values_of(self.path, str(self.value(holder, depth)))
        except FileError:
            raise UnknownValueError("is known where it runs") from None
        return True

    _call_is_file = _call_isfile = _call_exists

    def _call_is_absolute(self, node: ast.Call, depth: int) -> bool:
        return Path(str(self.value(node.func.value, depth))).is_absolute()  # type: ignore[attr-defined]

    # Command lines.

    def _call_add_argument_group(self, node: ast.Call, depth: int) -> CommandLine:
        held = self.value(node.func.value, depth) if isinstance(node.func, ast.Attribute) else None
        if not isinstance(held, CommandLine):
            raise UnknownValueError(RETURNS)
        return held

    _call_add_mutually_exclusive_group = _call_add_argument_group

    def _call_parse_known_args(self, node: ast.Call, depth: int) -> list[Any]:
        return [self._call_parse_args(node, depth), []]


def is_plain(held: Any) -> bool:  # noqa: ANN401
    """Tell whether a value is one that a configuration has, known or not in its parts: no object, function or file.

    Nor is one that holds itself, or in which too many parts stand, or too deep.
    """
    waiting, parts = [(held, 0)], 0
    while waiting:
        each, depth = waiting.pop()
        parts += 1
        inner = (
            each.values() if isinstance(each, dict) else each if isinstance(each, list) else None
        )
        if parts > MOST_PARTS or depth > DEEPEST:
            return False
        if inner is not None:
            waiting += [(part, depth + 1) for part in inner]
        elif not (each is None or isinstance(each, str | int | float | Unknown)):
            return False
    return True


def _calls_in(body: Sequence[ast.stmt]) -> Iterator[ast.Call]:
    return (each for part in body for each in ast.walk(part) if isinstance(each, ast.Call))
