"""`rlplan compare JOB`: our plan beside those of systems of the field."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlplan_cli.terminal import JsonOption, ProfileOption, echo_json, print_table, progress_bar, say

if TYPE_CHECKING:
    from rlplan.results.systems import SystemsComparison

EXAMPLE = (
    "Example: rlplan compare examples/ppo-7b-16xa100.yaml --systems deepspeed-chat,openrlhf-0.2"
)


def command(
    job: Annotated[Path, typer.Argument(help="The job's file (YAML).", show_default=False)],
    systems: Annotated[
        str,
        typer.Option(
            help="Systems, with commas between them: deepspeed-chat, openrlhf-0.2, "
            "nemo-aligner-0.2, verl, openrlhf, megatron-heuristic; all of them by default.",
            show_default=False,
        ),
    ] = "",
    profile: ProfileOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write a page with a plot, and every plan, into this folder.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare our best plan with what DeepSpeed-Chat, OpenRLHF, verl and others can run."""
    from planner.systems.comparing import compare_systems
    from profiles.catalog import load_job
    from profiles.facts import load_facts
    from rlplan_cli.comparing import comparison_document, wanted_systems, write_comparison
    from rlplan_cli.outputs import check_folder
    from rlplan_cli.steps import check_rule_name

    names = wanted_systems(systems)
    resolved = load_job(job)
    check_rule_name(resolved, job)
    check_folder("--out", out)
    facts = load_facts(resolved, profile)
    with progress_bar("compare") as progress:
        found = compare_systems(resolved, facts, names, progress=progress)
    page = write_comparison(out, found, resolved) if out is not None else None
    if as_json:
        echo_json(comparison_document(found))
    else:
        _print(found)
    if page is not None:
        say(f"written: {page}")


def _print(found: SystemsComparison) -> None:
    from reports.pages.systems import verdict
    from reports.tables.systems import (
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
