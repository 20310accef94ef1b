"""Answers of `rlplan check` as annotations of GitHub's workflows, at the lines of the script that they are about.

The format is that of workflow commands (docs.github.com, "Workflow commands for GitHub Actions"); what is escaped is what the
runner's own toolkit escapes (actions/toolkit, `packages/core/src/command.ts`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rlplan.errors import FileError, SeveralMistakesError, UserError, printable, unreadable

if TYPE_CHECKING:
    from rlplan.planner.configs.checking import Checked, Finding

Level = Literal["error", "warning", "notice"]

# File and line, as readers of configurations say where a key stands.
PLACE = re.compile(r"(?P<file>.+):(?P<line>[1-9]\d{0,8})")
NAME = "rlplan"
# Of a script that somebody wrote; a longer one is not looked through.
LARGEST_SCRIPT_BYTES = 2**21


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """Hold one annotation.

    Attributes:
        file: Path as it was given; None where it is about no file.
        line: Counted from 1; None where it is about the whole file.
    """

    level: Level
    title: str
    message: str
    file: Path | None = None
    line: int | None = None

    def __str__(self) -> str:
        """Return the workflow command that makes it."""
        properties = []
        if self.file is not None:
            properties.append(f"file={_property(_in_workspace(self.file))}")
            properties += [] if self.line is None else [f"line={self.line}"]
        properties.append(f"title={_property(self.title)}")
        return f"::{self.level} {','.join(properties)}::{_data(self.message)}"


def annotations_of(checked: Checked) -> Iterator[Annotation]:
    """Yield what is to be said of a configuration, the most important first: GitHub shows ten of each level."""
    stopping = [each for each in checked.findings if each.stops]
    others = [each for each in checked.findings if not each.stops]
    yield from (_of_finding(each, checked.file, "error") for each in stopping)
    yield from _of_memory(checked)
    yield from (_of_finding(each, checked.file, "warning") for each in others)
    yield from _of_keys(checked)
    yield from _of_step(checked)


def annotations_of_error(error: UserError) -> Iterator[Annotation]:
    """Yield an annotation for each mistake, at its line of the file if it has one."""
    if isinstance(error, SeveralMistakesError):
        for each in error.errors:
            yield from annotations_of_error(each)
        return
    file, line = None, None
    if isinstance(error, FileError):
        file, line = place_of(error.file, error.field or "", "")
    yield Annotation(
        level="error", title=f"{NAME}: cannot be checked", message=str(error), file=file, line=line
    )


def place_of(where: str, key: str, file: str) -> tuple[Path | None, int | None]:
    """Return the file and line of a key.

    Args:
        where: What its reader says: file and line, a file, or an argument of the command line.
        key: With its dots; the first line with its text counts where the reader knows none, else that with its last part.
        file: The configuration's, where the reader names none.
    """
    found = PLACE.fullmatch(where)
    if found is not None and Path(found["file"]).is_file():
        return Path(found["file"]), int(found["line"])
    for path in (Path(each) for each in (where, file) if each):
        if _is_file(path):
            return path, first_line(path, key)
    return None, None


def first_line(path: Path, key: str) -> int | None:
    """Return the first line of a file that has a key's text, else its last part as a word; None where none has."""
    from rlplan.files.decoding import text_of

    try:
        if not key or path.stat().st_size > LARGEST_SCRIPT_BYTES:
            return None
        lines = text_of(path, "replace").splitlines()
    except OSError as error:
        raise unreadable(str(path), error) from None
    last = re.escape(key.rpartition(".")[2])
    for pattern in (rf"(?<![\w.-]){re.escape(key)}(?![\w.-])", rf"(?<![\w-]){last}(?![\w-])"):
        for number, line in enumerate(lines, 1):
            if re.search(pattern, line):
                return number
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _of_finding(finding: Finding, file: str, level: Level) -> Annotation:
    path, line = place_of(finding.where, finding.key, file)
    value = "" if finding.value is None else f"={finding.value}"
    allowed = f"; allowed: {finding.allowed}" if finding.allowed else ""
    return Annotation(
        level=level,
        title=f"{NAME}: {finding.rule}",
        message=f"{finding.key}{value}: {finding.problem}{allowed}",
        file=path,
        line=line,
    )


def _of_memory(checked: Checked) -> Iterator[Annotation]:
    """Yield that it does not fit, or may not, with why and what would."""
    if checked.verdict == "fits" or checked.forecast is None:
        return
    from rlplan.reports.tables.plans import fit_words

    would = [f"would fit: {each.words}" for each in checked.better[:1]]
    if checked.forecast.feasible:
        would = []
    said = (
        fit_words(checked.forecast, checked.verdict),
        *checked.forecast.infeasible_reasons,
        *checked.remarks,
        *would,
    )
    yield Annotation(
        level="error" if checked.verdict == "does not fit" else "warning",
        title=f"{NAME}: {checked.verdict}",
        message="\n".join(said),
        file=place_of(checked.file, "", "")[0],
    )


def _of_keys(checked: Checked) -> Iterator[Annotation]:
    """Yield which keys make the answer doubtful, and which are not understood."""
    if checked.imported is None:
        return
    keys, flat = checked.imported.keys, checked.imported.settings.flat
    for key, what in keys.changes_work.items():
        path, line = place_of(flat[key].where if key in flat else "", key, checked.file)
        yield Annotation(
            level="warning",
            title=f"{NAME}: doubtful",
            message=f"{key} changes the amount of work ({what}) and is not counted",
            file=path,
            line=line,
        )
    for key, words in zip(keys.unknown, checked.imported.unknown(), strict=True):
        path, line = place_of(flat[key].where, key, checked.file)
        yield Annotation(
            level="warning",
            title=f"{NAME}: not understood",
            message=f"{words}: not counted",
            file=path,
            line=line,
        )


def _of_step(checked: Checked) -> Iterator[Annotation]:
    """Yield what a step takes, and what would be faster."""
    if checked.forecast is None or not checked.forecast.feasible:
        return
    from rlplan.reports.tables.plans import fit_words
    from rlplan.units import show_seconds

    low, high = map(show_seconds, checked.forecast.iteration_seconds_interval)
    seconds = show_seconds(checked.forecast.iteration_seconds)
    said = [
        fit_words(checked.forecast, checked.verdict),
        f"a step takes {seconds} (p10 to p90: {low} to {high})",
    ]
    said += [
        f"faster: {each.words}: {show_seconds(each.seconds)} a step" for each in checked.better
    ]
    yield Annotation(
        level="notice",
        title=f"{NAME}: {'runs' if checked.will_run else 'will not run'}",
        message="\n".join(said),
        file=place_of(checked.file, "", "")[0],
    )


def _in_workspace(path: Path) -> str:
    """Return a path as GitHub knows it: from the repository's root, where that is known."""
    root = os.environ.get("GITHUB_WORKSPACE")
    if root:
        try:
            return path.resolve().relative_to(Path(root).resolve()).as_posix()
        except ValueError:
            pass
    return path.as_posix()


def _data(text: str) -> str:
    """Return a message as a workflow command holds it: on one line, and no terminal's commands in it."""
    shown = "\n".join(map(printable, text.splitlines()))
    return shown.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Return a property's value as a workflow command holds it."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
