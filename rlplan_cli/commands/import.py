"""`rlplan import FRAMEWORK FILE|ARGS...`: a framework's configuration as a job and a plan."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlplan_cli.config_options import (
    READ,
    AsOption,
    EnvironmentOption,
    GivenOptions,
    GpuOption,
    HostMemoryOption,
    ModelOption,
    ObservationOption,
    PromptOption,
    ResponseOption,
    RunOption,
    SetOption,
    ToolOption,
    TurnsOption,
    VersionOption,
    complete_read,
    import_options,
)
from rlplan_cli.terminal import JsonOption, echo_json, print_table, say, say_written

if TYPE_CHECKING:
    from rlplan.planner.configs.importing import Imported

EXAMPLE = (
    "Example: rlplan import verl run.sh --gpu h100-80gb-sxm --mean-response 300 "
    "--out job.yaml --plan plan.yaml"
)


def command(  # noqa: PLR0917 -- one parameter an option
    framework: Annotated[str, typer.Argument(help=f"{READ}.", autocompletion=complete_read)],
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|ARGS...",
            help="A launch script or YAML file and its arguments, or a command line (after --).",
        ),
    ],
    gpu: GpuOption = None,
    mean_response: ResponseOption = None,
    mean_prompt: PromptOption = None,
    model: ModelOption = None,
    run: RunOption = False,
    taken_as: AsOption = None,
    framework_version: VersionOption = None,
    host_memory_bytes: HostMemoryOption = None,
    environment: EnvironmentOption = None,
    turns: TurnsOption = None,
    observation_tokens: ObservationOption = None,
    tool_seconds: ToolOption = None,
    set_keys: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Write the job here.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Write the plan here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Read a framework's configuration into a job and a plan; every key is mapped, or listed."""
    from rlplan.files.writing import check_files, plain, write_yaml
    from rlplan.planner.configs.importing import imported

    check_files({"--out": out, "--plan": plan}, inputs=[Path(words[0])])
    given = GivenOptions(
        gpu,
        mean_response,
        mean_prompt,
        model,
        run,
        taken_as,
        framework_version,
        host_memory_bytes,
        environment,
        turns,
        observation_tokens,
        tool_seconds,
        set_keys,
    )
    options = import_options(framework, words, given, _job_path(out, plan))
    found = imported(framework, words, options)
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
    for gap in found.settings.gaps:
        say(f"not evaluated: {gap}")
    for note in found.notes:
        say(f"assumed: {note}")
