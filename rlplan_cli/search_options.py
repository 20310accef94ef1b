"""What a user may ask of a search on the command line, beside what the job says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlplan.plan import FLOWS, USUAL_MODE, Mode
from rlplan.planner.configs.frameworks import names_in_words
from rlplan.planner.objectives import objectives_words
from rlplan_cli.config_options import complete_written

if TYPE_CHECKING:
    from rlplan.job import Job
    from rlplan.planner.requests.pinned import Pinned
    from rlplan.specs import Specs

LIMITS = "Limits"


ObjectiveOption = Annotated[
    str | None, typer.Option(help=f"What to minimise: {objectives_words()}.  [default: the job's]")
]
ParetoOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B[,C]",
        help="Find the plans that no other beats in two or three objectives, such as throughput,cost.",
    ),
]
SecondsOption = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="Stop (each search of --pareto) after so long, with the best plan so far and its gap.",
    ),
]
ForOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="FRAMEWORK",
        autocompletion=complete_written,
        help=f"Search only what {names_in_words('keys', 'writing')} can run; `rlplan export` then writes its configuration.  "
        "[default: the job's framework, if it is one of them]",
    ),
]
BeyondOption = Annotated[
    bool,
    typer.Option(
        "--beyond",
        help="Look further than what the job's framework can run, and say what that would bring.",
    ),
]
StandsOption = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        help="The job's plan as it stands, such as `rlplan import --plan` writes: one of the candidates, whatever its sizes.",
    ),
]
ModeOption = Annotated[
    Mode | None,
    typer.Option(
        help="The mode in which plans may run where that is better than sync: streaming, one-step-off (weights "
        "one update old), or async (as old as --spec staleness=N allows, 1 if nothing is said). Episodes in environments "
        "run in all of them."
    ),
]
SpecOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="A limit that every plan keeps: iteration_seconds, gpus, cost_usd (of an iteration), "
        "usd_per_hour, energy_joules (of an iteration), memory_headroom_fraction (at least), "
        "staleness. Comes before the job's own; may be given several times.",
        rich_help_panel=LIMITS,
    ),
]
MaxGpusOption = Annotated[int | None, typer.Option(help="Most GPUs.", rich_help_panel=LIMITS)]
MaxSecondsOption = Annotated[
    float | None, typer.Option(help="Longest iteration.", rich_help_panel=LIMITS)
]
MaxCostOption = Annotated[
    float | None, typer.Option(help="Most money for an iteration.", rich_help_panel=LIMITS)
]
MaxHourOption = Annotated[
    float | None,
    typer.Option(help="Most money for an hour of all the plan's GPUs.", rich_help_panel=LIMITS),
]


def requested_job(
    job: Job,
    objective: str | None,
    mode: Mode | None,
    specs: list[str] | None,
    limits: dict[str, float | None],
) -> Job:
    """Return the job with the objective and the limits that the command line gives.

    Args:
        specs: Pairs `name=value`.
        limits: Specs that have options of their own.

    Raises:
        UserError: A name is not known or a value is not allowed.
    """
    from rlplan.planner.objectives import load_objective

    name = objective or job.objective
    load_objective(name)
    given = dict(_pair(text) for text in specs or ())
    given |= {spec: value for spec, value in limits.items() if value is not None}
    if mode is not None:
        known = given.get("staleness", job.specs.staleness)
        flow = FLOWS[mode]
        given["staleness"] = flow.usual_staleness if known is None else known
        if flow.ahead and given["staleness"] < flow.ahead:
            given["staleness"] = flow.ahead
    return replace(job, objective=name, specs=_with(job.specs, given))


def named_modes(pinned: Pinned, mode: Mode | None) -> Pinned:
    """Return what is pinned with the modes that the command line allows, unless a partial plan says its own."""
    if mode is None or pinned.asked.modes:
        return pinned
    modes = tuple(dict.fromkeys((USUAL_MODE, mode)))
    return replace(pinned, asked=replace(pinned.asked, modes=modes))


def _pair(text: str) -> tuple[str, Any]:
    from rlplan.errors import FileError

    name, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        allowed = "NAME=VALUE, such as gpus=16"
        raise FileError("--spec", "is no limit", value=text, allowed=allowed) from None
    return name.strip(), int(number) if number.is_integer() else number


def _with(specs: Specs, given: dict[str, Any]) -> Specs:
    from rlplan.files.decoding import decode
    from rlplan.specs import Specs

    return decode(Specs, {**specs.given, **given}, "--spec")


def objectives_of(pareto: str) -> tuple[str, ...]:
    """Return the objectives that `--pareto` names.

    Raises:
        UserError: They are not two or three different objectives.
    """
    from rlplan.planner.answers.best_plans import check_names

    names = tuple(name.strip() for name in pareto.split(","))
    check_names(names)
    return names
