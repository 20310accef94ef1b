"""`export`: a plan as a framework's launch script or file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rlplan.files.frozen import FrozenDict
from rlplan_cli.typed.forecasts import lines
from rlplan_cli.typed.sources import PlanDocument
from rlplan_cli.typed.tool import Said

if TYPE_CHECKING:
    from rlplan.plan import Plan
    from rlplan.profiles.facts import Facts

# It may write a file, where it is told which.
WRITES = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Say what is written for whom, and where to."""

    to: Annotated[str, Said("The framework, such as verl.")]
    file: Annotated[str | None, Said("Path of the plan's file, complete or in part.")] = None
    plan: PlanDocument = None
    out: Annotated[
        str | None,
        Said("Write it to this path, replacing a file there; nothing is written without it."),
    ] = None
    version: Annotated[str | None, Said("Refuse any other version of the framework than this.")] = (
        None
    )
    defaults: Annotated[
        str | None,
        Said("Where a file is written: the one whose values count for keys that no plan decides."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Hold what was written.

    Attributes:
        text: The script or file.
        written: Where it was written to; None where no path was given.
        start: The command that starts it.
        variables: What no plan says, and what it is unless somebody sets it; None has to be set.
        notes: What whoever starts it should know.
    """

    framework: str
    version: str
    text: str
    written: str | None
    start: str
    variables: FrozenDict[str, str | None]
    notes: tuple[str, ...]


def call(asked: Arguments) -> Answer:
    """Write a plan by the keys of a framework, as a launch script or file; what that framework cannot run is refused. A file is written only where `out` says."""
    from rlplan.files.writing import check_files, write_text
    from rlplan.planner.configs.writing.exporting import exported

    out = None if asked.out is None else Path(asked.out)
    check_files({"--out": out}, inputs=[] if asked.file is None else [Path(asked.file)])
    plan, facts, file = _plan(asked)
    found = exported(
        plan, asked.to, file=file, facts=facts, version=asked.version, defaults=asked.defaults
    )
    if out is not None:
        write_text(out, found.text)
    return Answer(
        framework=found.framework,
        version=found.version,
        text=found.text,
        written=asked.out,
        start=found.start,
        variables=FrozenDict(found.variables),
        notes=found.notes,
    )


def _plan(asked: Arguments) -> tuple[Plan, Facts, str]:
    """Return the plan that is meant, complete, with the facts of its devices and what it is called."""
    from rlplan.errors import FileError
    from rlplan.planner.answers.completion import complete, load_plan
    from rlplan.profiles.facts import load_facts
    from rlplan_cli.typed.sources import draft_of
    from rlplan_cli.typed.tool import ARGUMENTS

    if (asked.file is None) == (asked.plan is None):
        problem = "is missing" if asked.file is None else "is another source beside the plan"
        allowed = "one of file and plan"
        raise FileError(ARGUMENTS, problem, field="file", value=asked.file, allowed=allowed)
    if asked.plan is None:
        path = Path(str(asked.file))
        return *load_plan(path), str(path)
    draft, job = draft_of(asked.plan)
    facts = load_facts(job)
    return complete(draft, job, facts, "plan"), facts, "plan"


def words(answer: Answer) -> str:
    """Return the answer in a few lines; the script itself only where it was not written to a file."""
    unset = [name for name, default in answer.variables.items() if default is None]
    return lines(
        f"written: {answer.written}" if answer.written else answer.text.rstrip("\n"),
        (f"to be set: {name}" for name in unset),
        (f"note: {note}" for note in answer.notes),
    )
