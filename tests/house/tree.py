"""The repository as the house rules see it: rooms, tracked files and declared names."""

import ast
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("rlplan", "rlplan_cli", "planner", "simulator", "executor", "profiles", "reports")
# A package beside the rooms, under their rules, which no wheel holds.
BESIDE = "evals"

NUMBER_WORDS = frozenset({"int", "float", "Decimal", "ndarray", "NDArray", "Array", "FloatArray"})


@cache
def project_files() -> tuple[Path, ...]:
    """Return the files that git tracks or would track, relative to the root."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = sorted({Path(name) for name in listing.split("\0") if name})
    return tuple(name for name in names if (ROOT / name).is_file())


@cache
def parsed(file: Path) -> ast.Module:
    """Return a file's syntax tree; each is read once for all rules."""
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


@cache
def statements(file: Path) -> tuple[ast.stmt, ...]:
    """Return a file's statements, those inside of others as well; expressions are not looked into."""
    found: list[ast.stmt] = []
    left: list[ast.AST] = [parsed(file)]
    while left:
        node = left.pop()
        if isinstance(node, ast.stmt):
            found.append(node)
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            left.extend(inner for inner in getattr(node, block, ()))
    return tuple(found)


def room_modules() -> tuple[Path, ...]:
    """Return every Python file of a room, relative to the root."""
    return _modules_of(ROOMS)


def own_modules() -> tuple[Path, ...]:
    """Return every Python file of a room and of what stands beside them, relative to the root."""
    return _modules_of((*ROOMS, BESIDE))


def import_name(path: Path) -> str:
    """Return the name by which a package or module is imported: rooms are members of `rlplan`."""
    own = path.with_suffix("").parts
    return ".".join(own if own[0] in ("rlplan", "rlplan_cli") else ("rlplan", *own))


def _modules_of(folders: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(
        path for path in project_files() if path.suffix == ".py" and path.parts[0] in folders
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Hold a field or a parameter that some module declares."""

    file: Path
    line: int
    name: str
    annotation: ast.expr

    @property
    def is_number(self) -> bool:
        """Return whether the annotation speaks of numbers, alone or in a collection."""
        return not NUMBER_WORDS.isdisjoint(re.findall(r"\w+", ast.unparse(self.annotation)))


def declared_in(file: Path) -> Iterator[Declared]:
    """Yield the fields of public classes and the parameters of public functions of a file."""
    yield from _declared(file, parsed(file))


def _declared(file: Path, scope: ast.Module | ast.ClassDef) -> Iterator[Declared]:
    for node in scope.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _declared(file, node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("_") and node.name != "__init__":
                continue
            arguments = node.args
            for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                if each.annotation is not None:
                    yield Declared(
                        file=file,
                        line=each.lineno,
                        name=each.arg,
                        annotation=each.annotation,
                    )
        elif (
            isinstance(scope, ast.ClassDef)
            and isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
        ):
            yield Declared(
                file=file,
                line=node.lineno,
                name=node.target.id,
                annotation=node.annotation,
            )
