"""What a Python program gives its calls: literals, constants, and options of its command line. Nothing of it is run."""

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeGuard

from rlplan.errors import FileError
from rlplan.planner.configs.reading.given import Flat, GivenValue, nested_leaves
from rlplan.planner.configs.reading.python.changes import CHANGED
from rlplan.planner.configs.reading.python.launcher_values import OTHERS
from rlplan.planner.configs.reading.python.launching import OWN_DEFAULTS
from rlplan.planner.configs.reading.python.played import is_plain, played_values
from rlplan.planner.configs.reading.python.program import Program
from rlplan.planner.configs.reading.python.syntax import (
    ANY_ATTRIBUTE,
    PACKAGE,
    REPLACES,
    Function,
    attributes_in,
    dotted,
    fits,
    handed_back,
    module_beside,
    names_in,
    place_in,
    reset_names,
    root_of,
    set_in,
    shown,
    tree_of,
    written,
)
from rlplan.planner.configs.reading.python.values import (
    NOT_GIVEN,
    NotGivenError,
    Unknown,
    UnknownValueError,
)
from rlplan.planner.configs.reading.sheet import LaunchSheet, PythonCall
from rlplan.planner.configs.shell.text import Gap

# Characters of what a message shows of an expression.
LONGEST: Final = 64
# Stands before a mapping that a call is given with `**`.
SPREAD: Final = "**"
# Calls inside each other that are looked into for texts, and names that stand for other names.
MOST_CALLS: Final = 3
# How calls are called that hold a training's settings.
CONFIGS: Final = "*Config"
# Stands for what is not known of a program that is followed.
MISSING: Final = object()
UNSURE: Final = "is set on a condition that is not known"
IN_MODULES: Final = "are made by several calls in modules beside the program"
# Variables that launchers set, of which a program may ask.
NO_VARIABLES: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTrainer:
    """Hold a trainer of a project's own that a program makes.

    Attributes:
        name: Of its class.
        path: The file in which it is written; where it is not at hand, that of the program.
        extends: Whether it is made of the framework's own; else it is a copy, or something else of that name. None where it
            is not at hand.
    """

    name: str
    path: Path
    extends: bool | None

    @property
    def copies(self) -> bool:
        """Tell whether its code is at hand, and is made of nothing of the framework's."""
        return self.extends is False

    def is_of(self, library: str, starts: Sequence[str]) -> bool:
        """Tell whether it is the framework's own after all, which stands in its package near the program."""
        return self.name in starts and library in self.path.parts[:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonKeys:
    """Hold what a Python program gives the calls that mean something.

    Attributes:
        flat: Values by key; also of calls in modules beside the program to which its statements lead.
        callees: What is called, in the order in which it stands.
        options: Names of flags that the program's own command line has; what they give went into the calls.
        defaults: What classes that are made of such a call's have as defaults of their fields, by key.
        notes: What else is to be said of how it was read.
        own: The trainer, where it is of the project's own; else None.
        elsewhere: Calls that mean something in modules beside the program: before which keys they stand, what is
            called, and where.
    """

    flat: Flat
    defaults: Flat
    callees: tuple[str, ...]
    options: frozenset[str]
    notes: tuple[str, ...]
    own: OwnTrainer | None
    elsewhere: tuple[tuple[str, str, str], ...]


def python_keys(
    path: Path,
    calls: Mapping[str, PythonCall],
    arguments: Flat,
    *,
    starts: Sequence[str] = (),
    library: str = "",
    words: Sequence[object] = (),
    environment: Mapping[str, str] = NO_VARIABLES,
    entry: Path | None = None,
) -> PythonKeys:
    """Return what a Python program gives calls.

    Args:
        calls: What their arguments are, by patterns of the callee's name.
        arguments: Flags that the program is started with.
        starts: Of the calls, those that start a training: of several of their settings those of one training count.
        library: As of `has_call`.
        words: What it is started with beside flags.
        environment: Variables that it is started with.
        entry: The program that is started with these, where that is another one, which calls this.

    Raises:
        FileError: It cannot be read, is no Python of today, or has settings of a class of its own alone.
    """
    program = _Calls(
        path=path,
        calls=calls,
        arguments=arguments,
        tree=tree_of(path),
        words=tuple(words),
        environment=environment,
    )
    program.started_from = entry
    program.collect()
    own = _own_names(path, program.tree, library) if library else frozenset[str]()
    left = [call for call, _ in program.found if dotted(call.func) in own]
    program.found = [each for each in program.found if each[0] not in left]
    notes, flat = tuple(program.choose(starts)), program.keys()
    program.refuse_own_settings(left)
    made = program.made_elsewhere(flat)
    return PythonKeys(
        flat={**made, **flat},
        defaults=program.defaults(),
        callees=tuple(program.callee(call) for call, _ in program.found),
        options=frozenset(program.options),
        notes=(*notes, *program.notes_of_following(), *_notes_of_modules(made)),
        own=program.own_trainer(starts),
        elsewhere=tuple(program.meant_elsewhere()),
    )


def has_call(
    path: Path, patterns: Sequence[str], library: str = "", others: Sequence[str] = ()
) -> bool:
    """Tell whether a file is Python that calls one of some names, or of a class of its own that is made of one.

    What stands in a class that is called as they are, and made of another, is part of a trainer, and starts none.

    Args:
        library: The package that the names belong to. Names imported from a module beside the file that never
            mentions the package do not count; nor do the file's own classes without bases, if the file does not
            import the package.
        others: Patterns of names that are not meant, though they fit.
    """
    try:
        tree = tree_of(path)
    except FileError:
        return False
    own = _own_names(path, tree, library) if library else frozenset()
    wanted = (*patterns, *_made_of(tree, patterns))
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        name = dotted(node.func) if isinstance(node, ast.Call) else ""
        if name not in own and fits(name, wanted) and not fits(name, others):
            return True
        part = isinstance(node, ast.ClassDef) and fits(node.name, wanted) and bool(node.bases)
        waiting += [] if part else ast.iter_child_nodes(node)
    return False


def _own_names(path: Path, tree: ast.Module, library: str) -> frozenset[str]:
    """Return the names that are of a program's own or of modules beside it, and none of a library's."""
    own = _imported_beside(path, tree, library)
    if not _imports(tree, library):
        own |= {each.name for each in tree.body if _is_made_of_nothing(each)}
    return own


def _imports(tree: ast.Module, library: str) -> bool:
    """Tell whether a program imports anything of a library."""
    for node in ast.walk(tree):
        named = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(library in each.split(".") for each in named):
            return True
    return False


def _is_made_of_nothing(node: ast.stmt) -> TypeGuard[ast.ClassDef]:
    """Tell whether a class is the program's own from the first line on."""
    return isinstance(node, ast.ClassDef) and not node.bases


def _made_of(tree: ast.Module, patterns: Sequence[str]) -> list[str]:
    """Return the classes of a program that are made of one of some names', and what is set to one of them."""
    found = list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            of_names = any(fits(dotted(each), patterns) for each in node.bases)
            found += [node.name] if of_names else []
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value
            named = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            of_names = any(fits(dotted(each), patterns) for each in named)
            found += [node.targets[0].id] if of_names else []
    return found


def _imported_beside(path: Path, tree: ast.Module, library: str) -> frozenset[str]:
    """Return the names that a program imports from modules beside it that do not name a library, or are of classes made of nothing there."""
    found = set[str]()
    for node in (each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)):
        beside = module_beside(path, node.module or "")
        named = (node.module or "").partition(".")[0] == library
        if beside is None or named or any(_is_package(each, library) for each in beside.parents):
            continue
        own = _made_of_nothing_in(beside) if _names(beside, library) else None
        found |= {
            each.asname or each.name for each in node.names if own is None or each.name in own
        }
    return frozenset(found)


def _is_package(folder: Path, library: str) -> bool:
    return folder.name == library and (folder / PACKAGE).is_file()


def _made_of_nothing_in(module: Path) -> frozenset[str]:
    """Return the classes of a module that are its own from the first line on; none of one that is no Python."""
    try:
        return frozenset(each.name for each in tree_of(module).body if _is_made_of_nothing(each))
    except FileError:
        return frozenset()


def _names(module: Path, word: str) -> bool:
    """Tell whether a module, or one of a package's, has a word."""
    files = module.parent.glob("*.py") if module.name == PACKAGE else (module,)
    return any(word in each.read_bytes().decode(errors="replace") for each in files)


def has_start(launch: LaunchSheet, path: Path) -> bool:
    """Tell whether a program calls what starts a framework's training."""
    return has_call(path, launch.starts, launch.library, tuple(launch.refused))


def program_that_starts(launch: LaunchSheet, path: Path) -> Path | None:
    """Return the program that calls what starts a framework's training: itself, or a module beside it of which it calls a name."""
    if has_start(launch, path):
        return path
    if not launch.starts:
        return None
    try:
        tree = tree_of(path)
    except FileError:
        return None
    called = _called_in(tree)
    for node in (each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)):
        beside = module_beside(path, node.module or "")
        named = {each.name for each in node.names if (each.asname or each.name) in called}
        if beside is None or beside == path or not named or not has_start(launch, beside):
            continue
        if _leads_to_start(launch, tree_of(beside), named):
            return beside
    return None


def _called_in(node: ast.AST) -> set[str]:
    """Return the names of what a part of a program calls, with what stands before their dots and without."""
    calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
    names = [dotted(each.func) for each in calls]
    return {*names, *(each.rpartition(".")[2] for each in names)}


def _leads_to_start(launch: LaunchSheet, tree: ast.Module, names: Collection[str]) -> bool:
    """Tell whether functions or classes of a module come to call what starts a training, themselves or by others of the module.

    What a statement sets may, as `main = app.run`; what the module only imports itself does not.
    """
    made = {name for each in tree.body for name in reset_names(each)}
    of_module = {each.name: each for each in tree.body if isinstance(each, Function | ast.ClassDef)}
    waiting, seen = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in of_module:
            if name in names and name in made:
                return True
            continue
        called = _called_in(of_module[name])
        wanted = (*launch.starts, *_made_of(tree, launch.starts))
        if any(fits(each, wanted) and not fits(each, tuple(launch.refused)) for each in called):
            return True
        waiting += called
    return False


def refused_call(launch: LaunchSheet, path: Path | None) -> str | None:
    """Return what a program's calls do otherwise than train with RL; None where none is known to, or where it does both."""
    if path is None or not launch.refused or has_start(launch, path):
        return None
    return next((what for call, what in launch.refused.items() if has_call(path, (call,))), None)


class _Calls(Program):
    """Read what a program gives the calls that mean something.

    Attributes:
        started_from: The program that is started, where that is another one which calls this.
        used: Whether anything was asked for there that the text alone does not say.
        played: What they are given where the program is followed, and options that are as it has them; None until it is.
    """

    played: tuple[Mapping[int, Any], str] | None = None
    started_from: Path | None = None
    used: bool = False

    def when_played(self, node: ast.expr) -> Any:  # noqa: ANN401 -- whatever Python has
        """Return what a call is given where the program's statements are followed; `MISSING` where that is not known."""
        held, self.used = self._followed()[0].get(id(node)), True
        # None may only be what an option comes to that is not given here.
        return MISSING if held is None or isinstance(held, Unknown) or not is_plain(held) else held

    def _followed(self) -> tuple[Mapping[int, Any], str]:
        """Return what calls are given where the program's statements are followed, of it and of modules beside it."""
        if self.played is None:
            modules = {each.path.resolve(): each.tree for each in self.known.values() if each}
            trees = {**modules, self.path.resolve(): self.tree}
            first, calls = self.started_from or self.path, tuple(self.calls)
            self.played = played_values(first, trees, calls, self.words, self.environment)
        return self.played[0], self.played[1]

    def callee(self, call: ast.Call) -> str:
        """Return the last part of what is called."""
        return dotted(call.func).rpartition(".")[2]

    def notes_of_following(self) -> Iterator[str]:
        """Yield what is said of options where values are known only since the program was followed."""
        if self.used and self.played is not None and self.played[0] and self.played[1]:
            yield OWN_DEFAULTS.format(self.path.name, self.played[1])

    def choose(self, starts: Sequence[str]) -> Iterator[str]:
        """Keep the calls that may run, and of several settings of a training those of the last training; say so."""
        kept = list[tuple[ast.Call, PythonCall]]()
        for call, meant in self.found:
            self.parameters = self.scopes.get(id(call), {})
            runs = self.runs(call)
            if runs is not False:
                kept.append((call, meant))
            if runs is None and not fits(dotted(call.func), starts):
                place = place_in(self.path, call.lineno)[0]
                yield f"{self.callee(call)} ({place}) is taken to be called, on a condition that is not known"
        yield from self._changes_of_names()
        self.parameters, self.found = {}, kept
        started = [call for call, _ in self.found if fits(dotted(call.func), starts)]
        configs = [each for each in started if fnmatchcase(self.callee(each), CONFIGS)]
        trainers = [each for each in started if each not in configs]
        for kind, several in (("trainings", trainers), ("settings", configs)):
            last = several[-1:]
            if kind == "settings" and trainers:
                given = (word.value for word in trainers[-1].keywords if word.arg == "args")
                used = next(given, ast.Constant(value=None))
                made = self._maker_of(used)
                last = last if made is None or made[0] not in several else [made[0]]
                yield from () if made is not None else self._made_anew(used, several)
            if len(several) > 1:
                place = place_in(self.path, last[0].lineno)[0]
                yield f"the program has {len(several)} {kind}, of which these are those of {place}"
                self.found = [
                    each for each in self.found if each[0] not in several or each[0] in last
                ]

    def refuse_own_settings(self, left: Sequence[ast.Call]) -> None:
        """Refuse a program whose settings are of a class of its own, where none are the framework's.

        Args:
            left: Calls of its own classes that are called as the framework's are.

        Raises:
            FileError: The class is named.
        """
        own = [each for each in left if fnmatchcase(self.callee(each), CONFIGS)]
        if own and not any(fnmatchcase(self.callee(each), CONFIGS) for each, _ in self.found):
            problem = f"its settings are of {dotted(own[-1].func)}, a class of the program's own: what its training makes of them is not known"
            raise FileError(
                self._where(own[-1]),
                problem,
                allowed="a program that gives the framework's own settings",
            )

    def _changes_of_names(self) -> Iterator[str]:
        """Yield what may set any of the program's names while it runs."""
        for node in ast.walk(self.tree):
            runs_text = isinstance(node, ast.Call) and dotted(node.func) == "exec"
            held = node.value if isinstance(node, ast.Subscript | ast.Attribute) else None
            of_all = isinstance(held, ast.Call) and dotted(held.func) == "globals"
            sets = (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)) or (
                isinstance(node, ast.Attribute) and node.attr == "update"
            )
            if (runs_text or (of_all and sets)) and self.runs(node) is not False:
                place = place_in(self.path, node.lineno)[0]  # type: ignore[attr-defined]
                source = shown(written(node))
                yield f"`{source}` ({place}) is taken to set none of the names that settings are of"

    def _made_anew(self, used: ast.expr, configs: Sequence[ast.Call]) -> Iterator[str]:
        """Yield a note where a trainer gets its settings from another call than the one that makes the framework's settings."""
        values = self.constants.get(used.id, []) if isinstance(used, ast.Name) else [used]
        made = next((each for each in values if isinstance(each, ast.Call)), None)
        if made is not None and configs:
            name, place = self.callee(configs[-1]), place_in(self.path, configs[-1].lineno)[0]
            source = shown(written(made))
            yield f"the settings are those of {name} ({place}): what `{source}` changes of them is not known"

    def own_trainer(self, starts: Sequence[str]) -> OwnTrainer | None:
        """Return the class of the last trainer that is made, be it at hand or not; None for the framework's."""
        for call, _ in reversed(self.found):
            name = dotted(call.func)
            held = [each for each in self.constants.get(name, []) if isinstance(each, ast.expr)]
            names = [each for value in held for each in self.called_as(value)] or [name]
            known = (*starts, *_made_of(self.tree, starts))
            found = [each for each in names if fits(each, known) and not fnmatchcase(each, CONFIGS)]
            if found:
                return self._own(found[0], starts)
        return None

    def _own(self, name: str, starts: Sequence[str]) -> OwnTrainer | None:
        """Return a trainer of a project's own by its name; None where it is the framework's."""
        found, called = self.class_named(name), name.rpartition(".")[2]
        if found is not None:
            home, kind = found
            return OwnTrainer(name=kind.name, path=home.path, extends=home.extends(kind, starts))
        named = [each for each in starts if "*" not in each]
        others = not fits(name, named) and not fits(name, _made_of(self.tree, named))
        return OwnTrainer(name=called, path=self.path, extends=None) if others else None

    def meant_elsewhere(self) -> Iterator[tuple[str, str, str]]:
        """Yield the calls in modules beside the program that would mean something in it, as `PythonKeys` holds them."""
        for meant, module, sites in self._meant_elsewhere():
            place = place_in(module.path, sites[0].lineno)[0]
            yield meant.prefix, dotted(sites[0].func), place

    def _meant_elsewhere(self) -> Iterator[tuple[PythonCall, Program, Sequence[ast.Call]]]:
        for module in filter(None, self.known.values()):
            for name, sites in module.sites.items():
                meant = self.meant_by(name)
                if meant is not None and name not in module.functions:
                    yield meant, module, sites

    def made_elsewhere(self, flat: Flat) -> Flat:
        """Return what calls in modules beside the program are given to which its statements lead, where it makes none such itself.

        Args:
            flat: What its own calls are given.
        """
        own = {meant.prefix for _, meant in self.found}
        sites = [
            (meant, module, site)
            for meant, module, several in self._meant_elsewhere()
            if meant.prefix not in own
            for site in several
        ]
        if not sites or not any(each.gaps for each in flat.values()):
            return {}
        given, later = self._followed()[0], self._set_anywhere()
        found: dict[str, list[Flat]] = {}
        for meant, module, site in sites:
            made = {
                key: given[id(each)]
                for key, each in _arguments_of(site, meant)
                if id(each) in given
            }
            where = place_in(module.path, site.lineno)[0]
            leaves = {
                key: Unknown(CHANGED, key)
                if later & {key.removeprefix(meant.prefix), ANY_ATTRIBUTE}
                else leaf
                for key, leaf in _leaves_of(made)
            }
            if leaves:
                found.setdefault(meant.prefix, []).append(dict(_as_given(leaves, where)))
        return {
            key: each
            for prefix, several in found.items()
            for key, each in _only_one(prefix, several)
        }

    def _set_anywhere(self) -> frozenset[str]:
        """Return the attributes that the program or a module beside it sets of anything but `self`, and of a copy: which of results is not known."""
        found = set[str]()
        trees = (self.tree, *(each.tree for each in self.known.values() if each))
        for node in (each for tree in trees for each in ast.walk(tree)):
            targets = (target for target, _ in set_in(node) if isinstance(target, ast.Attribute))
            found |= {each.attr for each in targets if dotted(each.value) != "self"}
            if isinstance(node, ast.Call) and dotted(node.func) in REPLACES:
                found |= {word.arg or ANY_ATTRIBUTE for word in node.keywords}
        return frozenset(found)

    def keys(self) -> Flat:
        """Return what the calls are given, and what is set of their results afterwards."""
        flat: Flat = {}
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
            runs = None if made is None or again else self.runs(value)
            if made is not None and not again and runs is not False:
                flat |= self._set_later(f"{made.prefix}{name}", value, flat, is_sure=runs is True)
        return flat

    def _set_later(self, key: str, value: ast.expr, before: Flat, *, is_sure: bool) -> Flat:
        """Return what is set of a call's result; where it is not known whether it is, what both ways have alike."""
        if key.endswith(ANY_ATTRIBUTE):
            source = f"{key}{written(value)}"
            return {source: self._unknown(value, written(value), "sets any of its attributes")}
        found = self._given(key, value)
        if is_sure:
            return found
        return {
            name: given
            if name in before and before[name].value == given.value
            else self._unknown(value, written(value), UNSURE)
            for name, given in found.items()
        }

    def defaults(self) -> Flat:
        """Return the defaults that classes made of a call's class have, as far as they are constants."""
        found = (self._given(key, default) for key, default in self.fields)
        return {key: given for each in found for key, given in each.items() if not given.gaps}

    def _spread(self, prefix: str, value: ast.expr) -> Flat:
        """Return the keys of a mapping that is given with `**`."""
        self.taken.clear()
        try:
            held = self.value(value)
        except UnknownValueError as error:
            held = self.when_played(value)
            if not isinstance(held, dict):
                source = f"{SPREAD}{written(value)}"
                return {f"{prefix}{source}": self._unknown(value, source, str(error))}
        inner = held.items() if isinstance(held, dict) else ()
        return {
            key: given
            for name, each in inner
            for key, given in self._leaves(f"{prefix}{name}", each, value)
        }

    def _leaves(self, key: str, held: object, value: ast.expr) -> Iterator[tuple[str, GivenValue]]:
        """Yield the keys of what an expression holds; an entry that is not known has a gap."""
        for name, leaf in nested_leaves(key, held):
            asked = isinstance(leaf, Unknown) and leaf.reason.endswith(NOT_GIVEN)
            if isinstance(leaf, Unknown) and leaf.node is not None and not asked:
                yield from self._given(name, leaf.node).items()
            elif isinstance(leaf, Unknown):
                yield name, self._unknown(value, leaf.source, leaf.reason)
            else:
                yield (
                    name,
                    GivenValue(value=_plain(leaf), where=self._where(value), taken=self._taken()),
                )

    def _where(self, value: ast.expr) -> str:
        return place_in(self.path, value.lineno)[0]

    def _taken(self) -> tuple[str, ...]:
        """Return the defaults that were taken for the value that was last looked at."""
        return tuple(f"{name} {shown(value)}" for name, value in self.taken.items())

    def _given(self, key: str, value: ast.expr) -> Flat:
        """Return a key's value, or a mapping's keys, behind those of another settings call that returns the mapping."""
        made = self._maker_of(value)
        if made is not None and self._may_be_none(value, made[0]):
            return {key: self._unknown(value, written(value), UNSURE)}
        if made is not None:
            first = self._first_of(*made)
            if made[1].prefix and not made[0].args and not made[0].keywords:
                # None of its keys tells that it is made.
                plain = GivenValue(value=written(made[0]), where=self._where(value))
                return {key: plain}
            outside, self.parameters = self.parameters, self.scopes.get(id(made[0]), {})
            try:
                return {} if first is None else self._given(key, first)
            finally:
                self.parameters = outside
        self.taken.clear()
        try:
            held = self.value(value)
        except UnknownValueError as error:
            if isinstance(error, NotGivenError) and not error.own and _alike(error.option, key):
                return {}  # the framework's own default
            asked = isinstance(error, NotGivenError) and error.option in self.options
            held = MISSING if asked else self.when_played(value)
            if held is not MISSING:
                return dict(self._leaves(key, held, value))
            texts = tuple(self._texts_of(value))
            return {key: self._unknown(value, written(value), str(error), texts)}
        another = self._is_another(value, held)
        if another and root_of(value) == "self":
            # Of an object its class says only what it has where nothing is given.
            held = self.when_played(value)
            another = held is MISSING
        return (
            {key: self._unknown(value, written(value), CHANGED)}
            if another
            else dict(self._leaves(key, held, value))
        )

    def _is_another(self, value: ast.expr, held: object) -> bool:
        """Tell whether a name, or what is made of names, is something else where the program's statements are followed."""
        if isinstance(value, ast.Constant) or not any(names_in(value)):
            return False
        used = self.used
        other = self.when_played(value)
        self.used = used
        if other is MISSING and root_of(value) == "self":
            return self.started_from not in {None, self.path}  # what it was made with stands there
        return other is not MISSING and _is_known(other) and other != held

    def _texts_of(self, value: ast.expr, inside: int = 0) -> Iterator[str]:
        """Yield the texts that functions are given whose results a value is."""
        named = value.id if isinstance(value, ast.Name) else None
        for held in [value] if named is None else self.constants.get(named, []):
            each = held.value if isinstance(held, ast.Subscript) else held
            given = (
                [*each.args, *(word.value for word in each.keywords)]
                if isinstance(each, ast.Call)
                else []
            )
            for argument in given if inside < MOST_CALLS else ():
                try:
                    held = self.value(argument)
                except UnknownValueError:
                    yield from self._texts_of(argument, inside + 1)
                    continue
                if isinstance(held, str):
                    yield held

    def _unknown(
        self, value: ast.expr, source: str, reason: str, texts: tuple[str, ...] = ()
    ) -> GivenValue:
        source = source if len(source) <= LONGEST else f"{source[:LONGEST]}..."
        gap = Gap(
            line=place_in(self.path, value.lineno)[1], source=source, reason=reason, texts=texts
        )
        return GivenValue(value=source, where=self._where(value), gaps=(gap,))

    def _maker_of(self, value: ast.expr, inside: int = 0) -> tuple[ast.Call, PythonCall] | None:
        """Return which of the calls made a value; None where none did."""
        named = isinstance(value, ast.Name)
        values = self.constants.get(value.id, []) if isinstance(value, ast.Name) else [value]
        values = [handed_back(each) for each in values]
        made = (each for each in self.found if any(each[0] is node for node in values))
        found = next(made, None) if named or isinstance(value, ast.Call) else None
        others = (each for each in values if each is not value and isinstance(each, ast.Name))
        if found is None and inside < MOST_CALLS:
            found = next(filter(None, (self._maker_of(each, inside + 1) for each in others)), None)
        return found

    def _may_be_none(self, value: ast.expr, made: ast.Call) -> bool:
        """Tell whether a name is none unless a call is made, and it is not known whether it is."""
        held = self.set_near(value) if isinstance(value, ast.Name) else []
        none = any(isinstance(each, ast.Constant) and each.value is None for each in held)
        return none and self.runs(made) is None

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


def _notes_of_modules(made: Flat) -> Iterator[str]:
    """Yield where calls in modules beside a program stand to which its statements lead, and what they give."""
    for place in dict.fromkeys(each.where for each in made.values()):
        keys = ", ".join(key for key, each in made.items() if each.where == place)
        yield f"{keys} are as the program comes to give them in {place}"


def _arguments_of(call: ast.Call, meant: PythonCall) -> Iterator[tuple[str, ast.expr]]:
    """Yield what a call is given, by key; of a mapping that is given with `**`, by what it is written as."""
    if meant.first and call.args:
        yield f"{meant.prefix}{meant.first}", call.args[0]
    is_config = fnmatchcase(dotted(call.func).rpartition(".")[2], CONFIGS)
    for word in call.keywords:
        # Of what loads a model, mappings mostly say where it is found.
        if word.arg or is_config:
            yield f"{meant.prefix}{word.arg or f'{SPREAD}{written(word.value)}'}", word.value


def _leaves_of(made: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of what a call is given; a mapping given with `**` that is not known is a key itself."""
    for key, held in made.items():
        prefix, spread, source = key.partition(SPREAD)
        if not spread:
            yield from nested_leaves(key, held)
        elif isinstance(held, dict) and OTHERS not in held:
            for name, each in held.items():
                yield from nested_leaves(f"{prefix}{name}", each)
        else:
            reason = held.reason if isinstance(held, Unknown) else CHANGED
            yield key, Unknown(reason, f"{SPREAD}{source}")


def _only_one(prefix: str, several: Sequence[Flat]) -> Iterator[tuple[str, GivenValue]]:
    """Yield what the only call of a kind is given; of several calls of settings, that it is not known which counts."""
    if len(several) == 1:
        yield from several[0].items()
    elif not prefix:
        where = next(iter(several[-1].values())).where
        yield from _as_given({f"{SPREAD}settings": Unknown(IN_MODULES, "settings")}, where)


def _as_given(leaves: Mapping[str, Any], where: str) -> Iterator[tuple[str, GivenValue]]:
    """Yield the keys of what a call is given that is made where a program's statements are followed."""
    for name, leaf in leaves.items():
        if not isinstance(leaf, Unknown):
            yield name, GivenValue(value=_plain(leaf), where=where)
            continue
        line = int(where.rpartition(":")[2])
        gap = Gap(line=line, source=shown(leaf.source), reason=leaf.reason)
        yield name, GivenValue(value=leaf.source, where=where, gaps=(gap,))


def own_trainer_of(path: Path, launch: LaunchSheet, arguments: Flat) -> OwnTrainer | None:
    """Return the trainer of a project's own that a program makes; None where it makes the framework's.

    Raises:
        FileError: It cannot be read, or is no Python of today.
    """
    return python_keys(path, launch.calls, arguments, starts=launch.starts).own


def _alike(option: str, key: str) -> bool:
    """Tell whether a key is given the framework's option of the same name, whose default it then has."""
    last = key.rpartition(".")[2]
    return last.removeprefix("torch_") == option.removeprefix("torch_")


def _is_known(held: object) -> bool:
    """Tell whether a value is known in all its parts."""
    parts = held.values() if isinstance(held, dict) else held if isinstance(held, list) else ()
    return not isinstance(held, Unknown) and all(map(_is_known, parts))


def _plain(value: object) -> object:
    """Return a value with whatever in its lists is no constant, such as a function, as its source text."""
    if isinstance(value, list):
        return [each.source if isinstance(each, Unknown) else _plain(each) for each in value]
    return value
