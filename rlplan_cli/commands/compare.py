"""`rlplan compare JOB`: our plan beside those of systems of the field."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlplan.planner.configs.frameworks import steps_in_words
from rlplan_cli.terminal import (
    JsonOption,
    ProfileOption,
    SiteOption,
    echo_json,
    print_table,
    progress_bar,
    say,
    say_written,
)

if TYPE_CHECKING:
    from rlplan.results.accuracy import SystemsComparison

EXAMPLE = (
    "Example: rlplan compare examples/ppo-7b-16xa100.yaml --systems deepspeed-chat,openrlhf-0.2"
)
FORECAST = steps_in_words()


def command(
    job: Annotated[Path, typer.Argument(help="The job's file (YAML).")],
    systems: Annotated[
        str,
        typer.Option(
            help="Systems, with commas between them: deepspeed-chat, openrlhf-0.2, "
            "nemo-aligner-0.2, verl, openrlhf, megatron-heuristic (all of them by default), or frameworks "
            f"whose steps are forecast: {FORECAST}."
        ),
    ] = "",
    profile: ProfileOption = None,
    site: SiteOption = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write a page with a plot, and every plan, into this folder."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare our best plan with what DeepSpeed-Chat, OpenRLHF, verl and others can run."""
    from rlplan.executor.learning.rules import check_rule_names
    from rlplan.files.writing import check_folder
    from rlplan.planner.systems.comparing import compare_systems
    from rlplan.profiles.catalog import load_job
    from rlplan.profiles.facts import load_facts
    from rlplan.reports.pages.systems import comparison_document, write_systems_page

    names = _wanted(systems)
    resolved = load_job(job)
    check_rule_names(resolved, job)
    check_folder("--out", out)
    facts = load_facts(resolved, profile, site)
    with progress_bar("compare") as progress:
        found = compare_systems(resolved, facts, names, progress=progress)
    page = write_systems_page(out, found, resolved) if out is not None else None
    if as_json:
        echo_json(comparison_document(found))
    else:
        _print(found)
    say_written(page)


def _print(found: SystemsComparison) -> None:
    from rlplan.reports.pages.systems import verdict
    from rlplan.reports.tables.systems import (
        misfits_table,
        stages_table,
        systems_memory_table,
        throughput_table,
    )

    print_table("Systems", throughput_table(found))
    if misfits_table(found).rows:
        print_table("Systems that cannot run the job", misfits_table(found))
    print_table("Iteration by stage", stages_table(found))
    print_table("Memory", systems_memory_table(found), spare=("Largest term", "Peak during"))
    say(verdict(found))


def _wanted(text: str) -> list[str] | None:
    """Return the systems named in an option, in order; None for all.

    Raises:
        UnknownNameError: There is no system of a name.
        UserError: The option names nothing.
    """
    from rlplan.errors import UserError
    from rlplan.planner.systems.comparing import known_system

    if not text:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError(f"--systems: names no system; found {text!r}; see: rlplan compare --help")
    return [known_system(name) for name in names]
