"""`rlplan import [FRAMEWORK] FILE|ARGS...`: a framework's configuration as a job and a plan."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlplan.planner.configs.frameworks import check_parts
from rlplan_cli.config_options import (
    READ,
    GivenOptions,
    complete_read,
    framework_of,
    import_options,
)
from rlplan_cli.terminal import JsonOption, echo_json, print_table, say, say_written

if TYPE_CHECKING:
    from rlplan.planner.configs.importing import Imported

EXAMPLE = (
    "Example: rlplan import verl run.sh --gpu h100-80gb-sxm --mean-response 300 "
    "--out job.yaml --plan plan.yaml"
)


def command(
    *,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[FRAMEWORK] FILE|ARGS...",
            help=f"{READ}, where the file does not tell it by its words; and a launch script or YAML file with its "
            "arguments, or a command line (after --).",
            autocompletion=complete_read,
        ),
    ],
    given: GivenOptions,
    out: Annotated[Path | None, typer.Option(help="Write the job here.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Write the plan here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Read a framework's configuration into a job and a plan; every key is mapped, or listed."""
    from rlplan.files.writing import check_files, plain, write_yaml
    from rlplan.planner.configs.importing import imported

    check_files({"--out": out, "--plan": plan}, inputs=[Path(word) for word in words[:2]])
    framework, rest = _framework_of(words, given.taken_as)
    options = import_options(framework, rest, given, _job_path(out, plan))
    found = imported(framework, rest, options)
    if out is not None:
        write_yaml(out, plain(found.job, drop_defaults=True))
    if plan is not None:
        draft = plain(found.draft, drop_defaults=True)
        if out is None:
            draft["job"] = plain(found.job, drop_defaults=True)
        write_yaml(plan, draft)
    if as_json:
        echo_json(found.document())
    else:
        _print(found)
    say_written(out, plan)


def _framework_of(words: list[str], taken_as: str | None) -> tuple[str, list[str]]:
    """Return the framework whose configuration is read, named or told by its words, and what is read of it.

    Raises:
        UnknownNameError: What stands before the file names no framework.
        FileError: The words do not tell it, are a job's or plan's file, or none but the name.
    """
    from rlplan.errors import FileError

    if len(words) > 1 and not Path(words[0]).exists() and Path(words[1]).is_file():
        check_parts(words[0], "keys", "reading")
    framework, rest = framework_of(words, taken_as)
    if framework is None:
        problem = "is of no framework by its keys: a job or a plan, or one that has to be named"
        raise FileError(words[0], problem, allowed="FRAMEWORK FILE; jobs and plans as they are")
    if not rest:
        raise FileError(framework, "is given no file", allowed=f"rlplan import {framework} FILE")
    return framework, rest


def _job_path(out: Path | None, plan: Path | None) -> str:
    """Return what the plan's file calls the job's."""
    if out is None or plan is None:
        return "job.yaml"
    return os.path.relpath(out, plan.parent)


def _print(found: Imported) -> None:
    from rlplan.reports.tables.plans import Table, columns

    keys = found.keys
    sheet = found.settings.sheet
    say(f"{found.settings.file}: {sheet.name} {sheet.version}")
    rows = (
        ("mapped", str(len(keys.mapped))),
        ("without influence", str(len(keys.without_influence))),
        ("not counted", str(len(keys.not_modelled))),
        ("doubtful", str(len(keys.changes_work))),
        ("not understood", str(len(keys.unknown))),
    )
    for doubt in found.doubts():
        say(f"doubtful: {doubt}")
    print_table("Keys", Table(columns=columns("Keys", "#Number"), rows=rows))
    for key, what in keys.not_modelled.items():
        say(f"not counted: {key}: {what}")
    for unknown in found.unknown():
        say(f"not understood: {unknown}")
    for gap in dict.fromkeys(map(str, found.settings.gaps)):
        say(f"not evaluated: {gap}")
    for note in found.notes:
        say(f"assumed: {note}")
