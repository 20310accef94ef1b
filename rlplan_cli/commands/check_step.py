"""`rlplan check-step LOG`: whether the step that one sees is normal, and which stage is not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlplan.errors import FileError
from rlplan.planner.configs.frameworks import absent, has, names_in_words
from rlplan_cli.config_options import (
    READ,
    AsOption,
    GivenOptions,
    GpuOption,
    ModelOption,
    PromptOption,
    ResponseOption,
    SetOption,
    VersionOption,
    refuse_given,
)
from rlplan_cli.configured import ran_by_script
from rlplan_cli.terminal import (
    JsonOption,
    ProfileOption,
    ReportOption,
    SiteOption,
    echo_json,
    print_table,
    say,
    say_written,
)

EXAMPLE = "Example: rlplan check-step train.log --job job.yaml --plan plan.yaml"
LOGGED = names_in_words("log")


def command(  # noqa: PLR0917 -- one parameter an option
    log: Annotated[
        Path,
        typer.Argument(
            help=f"A log of {LOGGED} (console, pasted keys, JSON, CSV export, TensorBoard), or the folder of an own run."
        ),
    ],
    job: Annotated[Path | None, typer.Option(help="The job that ran.")] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            help=f"What ran: a plan, or the script or recipe itself ({READ}); without it the job's best plan is compared with."
        ),
    ] = None,
    gpu: GpuOption = None,
    mean_response: ResponseOption = None,
    mean_prompt: PromptOption = None,
    model: ModelOption = None,
    taken_as: AsOption = None,
    framework_version: VersionOption = None,
    set_keys: SetOption = None,
    profile: ProfileOption = None,
    site: SiteOption = None,
    warmup: Annotated[int, typer.Option(min=0, help="First steps that are left out of a log.")] = 1,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Lay measured stages beside the forecast at the measured lengths, and name those that are slow.

    A stage is normal where 19 of 20 sites have it; `rlplan calibrate` and --site narrow that.
    """
    from rlplan.files.writing import check_folder, plain
    from rlplan.planner.measured.checking import check_steps, what_ran
    from rlplan.reports.pages.step_check import write_step_check_page
    from rlplan.reports.tables.accuracy import measured_words, step_check_table, verdict_lines
    from rlplan.simulator.simulate import simulate

    check_folder("--report", report)
    given = GivenOptions(
        gpu,
        mean_response,
        mean_prompt,
        model,
        taken_as=taken_as,
        version=framework_version,
        values=set_keys,
    )
    script = None
    if plan is None:
        refuse_given(given, str(job or log))
    else:
        script = ran_by_script(log, plan, given, warmup, (profile, site))
    if script is not None and job is not None:
        raise FileError("--job", "is said by the script", value=str(job), allowed="without it")
    ran = script or what_ran(log, job, plan, profile=profile, site=site)
    try:
        found = check_steps(log, ran, warmup=warmup)
    except FileError as error:
        raise _with_framework(error, ran.plan.job.framework) from None
    if report is not None:
        forecast = simulate(ran.plan, ran.facts)
        say_written(write_step_check_page(report, found, ran.plan, forecast))
    if as_json:
        echo_json({"verdict": found.verdict, **plain(found)})
        return
    sys.stdout.write(f"{measured_words(found)}\n\n")
    print_table("Measured stages beside the forecast at these lengths", step_check_table(found))
    sys.stdout.write("\n".join(verdict_lines(found)) + "\n")
    for note in found.notes:
        say(note)


def _with_framework(error: FileError, framework: str) -> FileError:
    """Return why a log could not be read; where no log of the framework that ran is known, that is why."""
    from rlplan.profiles.frameworks import framework_of_sheet
    from rlplan.profiles.sheets import load_framework

    name = framework_of_sheet("steps", framework)
    if name is None or has(name, "log") or load_framework(framework).runs:
        return error
    problem = f"{error.problem}; {absent(name, 'log')}"
    return FileError(
        error.file, problem, field=error.field, value=error.value, allowed=error.allowed
    )
