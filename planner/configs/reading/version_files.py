"""What scripts, and files beside and above them, say of the versions of a framework and its engines."""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from rlplan.files.decoding import text_of
from rlplan.planner.configs.reading.sheet import ConfigSheet

# Beside a script, and in the folders above it: up to its repository's root, or so many where none is seen.
REQUIREMENTS: Final = ("requirements*.txt", "setup.py", "pyproject.toml", "Dockerfile*")
OWN_REQUIREMENTS: Final = ("setup.py", "pyproject.toml")
MOST_FOLDERS: Final = 4
NEAR_FOLDERS: Final = 2
# How copies of a framework inside another repository are called, and folders of what is others'.
COPIES: Final = r"(?:{})(?:[-_.]?v?\d[\w.]*|[-_](?:main|master|train))?$"
OF_OTHERS: Final = (
    "third_party",
    "third-party",
    "thirdparty",
    "3rdparty",
    "external",
    "submodules",
    "deps",
)
# How a script's text names a folder: as a word, or a part of a path.
NAMED: Final = r"(?<![\w.-]){}(?![\w.-])"
MINOR: Final = "_minor"
ASSIGNED: Final = re.compile(r"""^\s*(?:self\.)?__version__\s*=\s*["']([^"']+)["']""", re.MULTILINE)
PARTS: Final = re.compile(r"^(MAJOR|MINOR|PATCH)\s*=\s*(\d+)\s*$", re.MULTILINE)
# What fixes a version beside requirements that leave it open, and what these leave: `trl>=0.16,<0.18`, `trl~=0.19.0`.
LOCKS: Final = ("uv.lock", "poetry.lock", "pdm.lock")
LOCKED: Final = r'^name = "{}"\nversion = "([^"]+)"'
LIMITED: Final = (
    r"""(?<![\w.-]){}(?:\[[\w,-]+\])?\s*(?P<limits>(?:(?:[<>]=?|[~!]=)\s*\d[\d.]*\*?\s*,?\s*)+)"""
)
LIMIT: Final = re.compile(r"([<>]=?|~=)\s*(\d[\d.]*)")
# Holds the version of a checkout whose pyproject.toml leaves it to a file, as TRL's does.
VERSION_FILE: Final = "VERSION"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """Hold what a file says of a version.

    Attributes:
        of: `version` of the framework, else an engine's name.
        where: The file, with the line where it has several.
    """

    of: str
    version: str
    words: str
    where: str


def hints_of(sheet: ConfigSheet, path: Path, near: Mapping[Path, Sequence[Path]]) -> Iterator[Hint]:
    """Yield what a script, and files beside and above it, say of versions.

    Args:
        near: Where a checkout may lie (`checkouts_near`).
    """
    patterns = [re.compile(each) for each in sheet.images]
    yield from _matches(patterns, path, comments=True)
    for folder, checkouts in near.items():
        for checkout in checkouts:
            yield from hints_of_checkout(sheet, checkout)
        for pattern in REQUIREMENTS:
            for file in sorted(folder.glob(pattern)):
                yield from _matches(patterns, file)
        yield from _locked_version(sheet, folder)


def hints_of_checkout(sheet: ConfigSheet, folder: Path) -> Iterator[Hint]:
    """Yield what a folder says of its version, where it is a checkout of the framework.

    A file that is called as other projects call theirs (`version.txt`) counts beside the framework's package alone.
    """
    for name in sheet.version_files:
        file = folder / name
        if file.is_file() and ("/" in name or (folder / sheet.package).is_dir()):
            version = _said_in(text_beside(file))
            yield Hint(of="version", version=version, words=version, where=str(file))
    yield from _own_version(sheet, folder)


def engine_limits(sheet: ConfigSheet, checkouts: Iterable[Path]) -> Iterator[Hint]:
    """Yield the newest engines that the requirements of checkouts leave: `pip install verl[vllm]` brings those."""
    for folder in checkouts:
        if not _holds_version(sheet, folder):
            continue
        for name, engine in product(OWN_REQUIREMENTS, sheet.engine_versions):
            for number, found in limited_in(folder / name, engine):
                for sign, version in LIMIT.findall(found["limits"]):
                    if sign == "<=":
                        where = f"{folder / name}:{number}"
                        yield Hint(of=engine, version=version, words=found[0], where=where)


def limited_in(file: Path, package: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield the lines, by number, in which a file of requirements limits a package's version, but for comments."""
    pattern = re.compile(LIMITED.format(re.escape(package)), re.IGNORECASE)
    for number, line in enumerate(text_beside(file).splitlines(), 1):
        found = None if line.lstrip().startswith("#") else pattern.search(line)
        if found is not None:
            yield number, found


def checkouts_near(sheet: ConfigSheet, path: Path) -> Mapping[Path, Sequence[Path]]:
    """Return where a checkout may lie, by a script's folder and those above it: that itself, and copies in it.

    What lies beside folders far above a script of no repository is not its own.
    """
    folders = tuple(folders_above(path))
    is_whole = (folders[-1] / ".git").exists()
    near = folders if is_whole else folders[:NEAR_FOLDERS]
    text = text_beside(path)
    return {each: (each, *(_copies(sheet, each, text) if each in near else ())) for each in folders}


def _copies(sheet: ConfigSheet, folder: Path, text: str) -> Iterator[Path]:
    """Yield the folders in a folder that are called as the framework is, and a fork under a name of its own; none where it cannot be read.

    A fork is told by the file in which the framework's package has its version, and is the only one whose folder a script's text names:
    what lies beside a script else is another project's.
    """
    names = "|".join({re.escape(sheet.name), re.escape(sheet.title)})
    called = re.compile(COPIES.format(names), re.IGNORECASE)
    for place in (folder, *(folder / name for name in OF_OTHERS)):
        try:
            inside = sorted(place.iterdir())
        except OSError:
            continue
        named = [each for each in inside if called.match(each.name)]
        others = [each for each in inside if each.name in text and each not in named]
        asked = [each for each in others if re.search(NAMED.format(re.escape(each.name)), text)]
        forks = [each for each in asked if _holds_version(sheet, each)]
        yield from (*named, *(forks if len(forks) == 1 else ()))


def _holds_version(sheet: ConfigSheet, folder: Path) -> bool:
    """Tell whether a folder has the framework's package with its version."""
    names = (each for each in sheet.version_files if "/" in each)
    try:
        return any((folder / each).is_file() for each in names)
    except OSError:  # a folder that nobody may enter
        return False


def text_beside(file: Path) -> str:
    """Return the text of a file that may say a version; none where it cannot be read, which refuses no script."""
    try:
        return text_of(file)
    except (OSError, UnicodeDecodeError):
        return ""


def _said_in(text: str) -> str:
    """Return what a file says of its version: `__version__ = "0.5.0"`, MAJOR, MINOR and PATCH one by one, or all of it."""
    parts = dict(PARTS.findall(text))
    if parts.keys() >= {"MAJOR", "MINOR", "PATCH"}:
        return ".".join(parts[each] for each in ("MAJOR", "MINOR", "PATCH"))
    given = ASSIGNED.search(text)
    return text.strip() if given is None else given[1]


def _own_version(sheet: ConfigSheet, folder: Path) -> Iterator[Hint]:
    """Yield what a folder's setup.py or pyproject.toml says, where it is of the framework itself."""
    packages = {**({sheet.package: ""} if sheet.package else {}), **sheet.packages}
    for name, read in (("setup.py", _of_setup), ("pyproject.toml", _of_project)):
        file = folder / name
        if not packages or not file.is_file():
            continue
        said = read(text_beside(file))
        version = said.get("version")
        beside = folder / VERSION_FILE
        if "version" in _words(said.get("dynamic")) and beside.is_file():
            version, file = text_beside(beside).strip(), beside
        before = packages.get(str(said.get("name")))
        if before is not None and isinstance(version, str):
            yield Hint(of="version", version=before + version, words=version, where=str(file))


def _words(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _locked_version(sheet: ConfigSheet, folder: Path) -> Iterator[Hint]:
    """Yield which version of the framework a folder's lock file has."""
    for name in LOCKS if sheet.package else ():
        file = folder / name
        if not file.is_file():
            continue
        pattern = re.compile(LOCKED.format(re.escape(sheet.package)), re.MULTILINE)
        text = text_beside(file)
        found = pattern.search(text)
        if found is not None:
            line = text.count("\n", 0, found.start(1)) + 1
            words = f"{sheet.package} {found[1]}"
            yield Hint(of="version", version=found[1], words=words, where=f"{file}:{line}")


def _of_setup(text: str) -> Mapping[str, object]:
    """Return what a setup.py gives literally: `setup(name="slime", version="0.2.1")`; nothing where it cannot be read."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    setups = (each for each in calls if ast.unparse(each.func).rpartition(".")[2] == "setup")
    given = (word for call in setups for word in call.keywords if word.arg is not None)
    return {
        str(word.arg): word.value.value for word in given if isinstance(word.value, ast.Constant)
    }


def _of_project(text: str) -> Mapping[str, object]:
    """Return the project of a pyproject.toml; nothing where it cannot be read."""
    try:
        project = tomllib.loads(text).get("project")
    except tomllib.TOMLDecodeError:
        return {}
    return project if isinstance(project, dict) else {}


def folders_above(path: Path) -> Iterator[Path]:
    """Yield a script's folder and those above it, up to its repository's root."""
    above = path.resolve().parents
    roots = (place for place, folder in enumerate(above, 1) if (folder / ".git").exists())
    yield from above[: next(roots, MOST_FOLDERS)]


def _matches(
    patterns: Sequence[re.Pattern[str]], path: Path, *, comments: bool = False
) -> Iterator[Hint]:
    """Yield what a file's lines say of versions.

    Args:
        comments: Whether lines that are comments count: a script's often say what it was run with.
    """
    for number, line in enumerate(text_beside(path).splitlines(), start=1):
        if line.lstrip().startswith("#") and not comments:
            continue
        for pattern in patterns:
            for found in pattern.finditer(line):
                for name, version in found.groupdict().items():
                    if version is None:
                        continue
                    minor = name.endswith(MINOR)
                    yield Hint(
                        of=name.removesuffix(MINOR),
                        version=f"0.{int(version)}" if minor else version,
                        words=found[0].strip(" :/-"),
                        where=f"{path}:{number}",
                    )
