"""What tools are asked about: a file of a job or plan, a framework's configuration, or a plan that a search answered with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rlplan_cli.typed.tool import ARGUMENTS, Said

if TYPE_CHECKING:
    from rlplan.job import Job
    from rlplan.plan import PlanDraft
    from rlplan.planner.configs.checking import Checked
    from rlplan_cli.config_options import GivenOptions

PlanDocument = Annotated[
    dict[str, Any] | None,
    Said("A plan as `search` answers with it (or a plan's file as JSON), in place of a file."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Say what a framework's configuration does not; of a job or a plan nothing of it may be said."""

    gpu: Annotated[
        str | None, Said("Type of a configuration's GPUs: a device sheet's name or file.")
    ] = None
    mean_response_tokens: Annotated[
        float | None, Said("Mean response of a configuration, in tokens.")
    ] = None
    mean_prompt_tokens: Annotated[
        float | None, Said("Mean prompt of a configuration, in tokens; 256 where nothing is said.")
    ] = None
    model: Annotated[
        tuple[str, ...], Said("In place of the actor's model; ROLE=MODEL for another role's.")
    ] = ()
    taken_as: Annotated[
        str | None, Said("Module or script that is taken for what starts the framework's training.")
    ] = None
    framework_version: Annotated[str | None, Said("Version of the framework, such as 0.7.")] = None
    host_memory_bytes: Annotated[int | None, Said("Host memory of a node, in bytes.")] = None
    environment: Annotated[
        str | None, Said("Path of a file of the environments that play episodes.")
    ] = None
    turns: Annotated[float | None, Said("Mean turns of an episode.")] = None
    observation_tokens: Annotated[
        float | None, Said("Mean tokens that a tool or environment adds.")
    ] = None
    tool_seconds: Annotated[float | None, Said("Mean seconds of a tool's call.")] = None
    values: Annotated[
        tuple[str, ...],
        Said("KEY=VALUE of the framework's keys, whatever the configuration says or leaves open."),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Beside):
    """Say what is asked about.

    Either `plan`, or `file`, which is a job's, a plan's or a framework's; or `arguments` alone: a command line.
    """

    file: Annotated[
        str | None,
        Said("Path of a launch script, a framework's YAML or TOML file, a job's or a plan's file."),
    ] = None
    plan: PlanDocument = None
    framework: Annotated[
        str | None,
        Said("Whose configuration it is, such as verl; what is not given is told by its words."),
    ] = None
    arguments: Annotated[
        tuple[str, ...],
        Said("What stands behind the file on the command line, or the command line itself."),
    ] = ()


# What options of commands are at least, by arguments.
LEAST = {"host_memory_bytes": 1, "observation_tokens": 1, "tool_seconds": 0}


def checked_of(asked: Source, file: str | None = None, *, alone: bool = True) -> Checked:
    """Return what is to be said of a source, as `rlplan check` does.

    Args:
        file: In place of the source's own file, read with the same options.
        alone: Whether no other source is read with these options.

    Raises:
        UserError: The source is wrong, or there is none, or more than one.
    """
    from rlplan.planner.answers.completion import complete
    from rlplan.planner.configs.checking import check_config, check_plan
    from rlplan.profiles.facts import load_facts
    from rlplan_cli.config_options import framework_of, import_options, refuse_given
    from rlplan_cli.interface import check_file

    given = given_beside(asked)
    if asked.plan is not None and file is None:
        check_alone(asked)
        if alone:
            refuse_given(given, "plan")
        draft, job = draft_of(asked.plan)
        facts = load_facts(job)
        return check_plan(complete(draft, job, facts, "plan", misfits=True), facts, "plan")
    named = file or asked.file
    words = [*([] if named is None else [named]), *asked.arguments]
    if not words:
        raise _missing("file")
    start = words if asked.framework is None else [asked.framework, *words]
    framework, rest = framework_of(start, asked.taken_as)
    if framework is None:
        if alone:
            refuse_given(given, rest[0])
        return check_file(Path(rest[0]))
    return check_config(framework, rest, import_options(framework, rest, given))


def given_beside(asked: Beside) -> GivenOptions:
    """Return what is said beside a configuration, as the options of commands say it.

    Raises:
        FileError: It is less than it can be.
    """
    from rlplan.errors import FileError
    from rlplan_cli.config_options import GivenOptions

    for name, least in LEAST.items():
        value = getattr(asked, name)
        if value is not None and value < least:
            allowed = f"{least} or more"
            raise FileError(ARGUMENTS, "is too small", field=name, value=value, allowed=allowed)
    return GivenOptions(
        gpu=asked.gpu,
        mean_response=asked.mean_response_tokens,
        mean_prompt=asked.mean_prompt_tokens,
        model=list(asked.model) or None,
        taken_as=asked.taken_as,
        version=asked.framework_version,
        host_memory_bytes=asked.host_memory_bytes,
        environment=None if asked.environment is None else Path(asked.environment),
        turns=asked.turns,
        observation_tokens=asked.observation_tokens,
        tool_seconds=asked.tool_seconds,
        values=list(asked.values) or None,
    )


def draft_of(document: dict[str, Any]) -> tuple[PlanDraft, Job]:
    """Return a plan that was handed over, as a plan's file is read; its paths are relative to where the server runs.

    Raises:
        FileError: The plan is wrong.
    """
    from rlplan.planner.requests.drafts import read_draft

    return read_draft(document, Path("plan"))


def check_alone(asked: Source) -> None:
    """Refuse a plan beside a file.

    Raises:
        FileError: Both are given.
    """
    from rlplan.errors import FileError

    if asked.file is not None or asked.arguments:
        problem = "is another source beside the plan"
        raise FileError(ARGUMENTS, problem, field="file", value=asked.file, allowed="one of them")


def _missing(name: str) -> Exception:
    from rlplan.errors import FileError

    allowed = "a file, a plan, or arguments"
    return FileError(ARGUMENTS, "is missing", field=name, allowed=allowed)
