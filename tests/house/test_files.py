"""Files: names that say what is inside, sizes that one reads in a sitting, no traces of a machine."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

from tests.house.tree import BESIDE, ROOMS, ROOT, own_modules, parsed, project_files, statements

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 50  # without the docstring; about 40 is the aim

NAMES_THAT_SAY_NOTHING = frozenset("util utils common helper helpers manager managers misc".split())

# Written so that this file does not match itself.
MACHINE_TRACES = {
    "a path of somebody's machine": re.compile(
        r"(?<![\w.$}/-])/(?:wor[k]|roo[t]|hom[e]/\w+|User[s]/\w+|opt/(?:pyp[i]|wheel[s]))/"
    ),
    "the host of a package registry": re.compile(
        r"pyp[i]\.org|pythonhoste[d]\.org|download\.pytorc[h]\.org|extra-inde[x]-url"
        r"|inde[x]-url|--find-link[s]"
    ),
}

# What every trace begins with or has in it, sought in all that is there; the patterns are tried where it is found.
MAY_BE_A_TRACE = re.compile(
    r"/(?:wor[k]|roo[t]|hom[e]|User[s]|opt)/|pyp[i]\.|pythonhoste[d]|pytorc[h]\.org|inde[x]-url|find-link[s]"
)


@cache
def text_of(path: Path) -> str:
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""  # an image or another binary file


def python_files() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".py"]


def test_the_rooms_are_members_of_the_package():
    links = {
        each.name: each.readlink() for each in (ROOT / "rlplan").iterdir() if each.is_symlink()
    }
    packages = {"rlplan", "rlplan_cli"}
    assert links == {room: Path("..", room) for room in {*ROOMS, BESIDE} - packages}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    found = settings["setuptools"]["packages"]["find"]
    assert {name.split(".")[0] for name in found["include"]} == packages
    assert set(found["exclude"]) == {f"rlplan.{BESIDE}", f"rlplan.{BESIDE}.*"}
    assert {*packages, "tests"} == set(settings["mypy"]["files"])
    assert packages == set(settings["importlinter"]["root_packages"])


def test_every_room_is_a_typed_package_with_a_docstring():
    assert (ROOT / "rlplan" / "py.typed").is_file()
    assert (ROOT / "rlplan_cli" / "py.typed").is_file()
    for room in (*ROOMS, BESIDE):
        assert ast.get_docstring(parsed(Path(room, "__init__.py"))), room


def test_file_names_say_what_is_inside():
    faults = [
        str(path)
        for path in python_files()
        if NAMES_THAT_SAY_NOTHING & {word for part in path.parts for word in words_of(part)}
    ]
    assert not faults, faults


def words_of(part: str) -> list[str]:
    return part.removesuffix(".py").lower().split("_")


def test_no_file_is_longer_than_one_reads_in_a_sitting():
    lengths = {str(path): len(text_of(path).splitlines()) for path in python_files()}
    faults = {path: length for path, length in lengths.items() if length > MAX_FILE_LINES}
    assert not faults, faults


def test_no_function_is_longer_than_one_holds_in_mind():
    faults = [
        f"{path}:{node.lineno}: {node.name} has {length} lines"
        for path in own_modules()
        for node in statements(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := body_lines(node)) > MAX_FUNCTION_LINES
    ]
    assert not faults, "\n" + "\n".join(faults)


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
    return (node.end_lineno or node.lineno) - first.lineno + 1


def test_no_file_bears_traces_of_a_machine():
    faults = [
        f"{path}:{number}: {what}: {line.strip()[:80]}"
        for path in project_files()
        if MAY_BE_A_TRACE.search(text_of(path))
        for what, pattern in MACHINE_TRACES.items()
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if pattern.search(line)
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_nothing_unfinished_is_left():
    """An abstract method may raise NotImplementedError; a stub may not be left behind."""
    faults = [
        f"{path}:{node.lineno}"
        for path in own_modules()
        for node in statements(path)
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node)
    ]
    assert not faults, faults
