"""`rlplan rent JOB`: which instances to rent for a run, how many, how long, and what it costs."""

from __future__ import annotations

import math
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rlplan.errors import FileError
from rlplan.plan import Mode
from rlplan_cli.amounts import number_of_gpus
from rlplan_cli.commands.search import ForOption, ModeOption
from rlplan_cli.config_options import EXAMPLE_GPU, GivenOptions
from rlplan_cli.configured import ScriptOptions, configured
from rlplan_cli.run_options import MOST_STEPS
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
    from collections.abc import Sequence

    from rlplan.job import Job
    from rlplan.planner.renting.offered import Offered
    from rlplan.planner.renting.searching import RentRequest
    from rlplan.planner.requests.pinned import Pinned
    from rlplan.rentals import RentalSheet
    from rlplan.results.renting import RentalAnswer, RentalLimits

EXAMPLE = (
    "Example: rlplan rent examples/grpo-qwen2.5-7b-8xh100.yaml --steps 400 --budget-usd 1000; "
    "rlplan rent examples/grpo-qwen2.5-7b-8xh100.yaml --steps 400 --deadline 5d --out rented"
)
OFFERED = "What is rented"
# Seconds of a unit of a deadline.
UNITS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}
DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:d|h|min|s))+")
DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(d|h|min|s)")


def command(
    *,
    job: Annotated[
        Path,
        typer.Argument(
            help="The file (YAML) of a job, or a framework's script or recipe; its cluster, if any, is not looked at."
        ),
    ],
    steps: Annotated[int, typer.Option(min=1, max=MOST_STEPS, help="Steps of the run.")],
    budget_usd: Annotated[
        float | None, typer.Option(min=0.0, help="The fastest run whose cost is within it at p90.")
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="5d|36h|90min",
            help="The cheapest run that is done within it at p90 (with a budget: within both).",
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(help="Only such GPUs; may be given several times.", rich_help_panel=OFFERED),
    ] = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(
            help="Only of this provider; may be given several times.", rich_help_panel=OFFERED
        ),
    ] = None,
    max_gpus: Annotated[
        int,
        typer.Option(
            metavar="N",
            parser=number_of_gpus,
            help="Most GPUs, of all instances: 64, or 8x8.",
            rich_help_panel=OFFERED,
        ),
    ] = 64,
    prices: Annotated[
        Path | None,
        typer.Option(
            help="Own instances and prices (YAML), in place of the catalogue.",
            rich_help_panel=OFFERED,
        ),
    ] = None,
    lengths: Annotated[
        Path | None,
        typer.Option(help="Mean response length by step (CSV: step,response_tokens; or a log)."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="Stop each search after so long.")
    ] = None,
    mode: ModeOption = None,
    target: ForOption = None,
    beside: ScriptOptions,
    profile: ProfileOption = None,
    site: SiteOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write a page, and the plan of each offer of the front, into this folder."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find which instances to rent for a run: how many, how long, and what it costs.

    Without --budget-usd and --deadline it shows the front of time against money. Prices are list prices of their date.
    """
    from rlplan.files.writing import check_folder
    from rlplan.planner.renting.offered import offered
    from rlplan.planner.renting.searching import rent
    from rlplan.results.renting import RentalLimits

    check_folder("--out", out)
    if budget_usd == math.inf:
        raise FileError("--budget-usd", "is no amount", value=budget_usd, allowed="a finite one")
    limits = RentalLimits(budget_usd=budget_usd, deadline_seconds=_seconds(deadline))
    sheets = _sheets(prices, provider or ())
    # What a step's work is does not depend on the GPUs that a script is read for.
    read_for = gpu[0] if gpu else EXAMPLE_GPU
    rented = _rented(job, beside.given(read_for), beside.framework)
    request = _request(rented, steps, limits, (mode, target, seconds), (profile, site, lengths))
    candidates = offered(sheets, gpus=gpu or (), most_gpus=max_gpus)
    _check(request, candidates[0])
    with progress_bar("rent") as progress:
        answer = rent(request, candidates, progress)
    if as_json:
        echo_json(answer)
    else:
        _print(answer)
    if out is not None:
        say_written(*_write(out, answer))


def _seconds(deadline: str | None) -> float | None:
    """Return the seconds of a deadline, such as `1d12h`.

    Raises:
        FileError: It is no duration.
    """
    if deadline is None:
        return None
    text = deadline.replace(" ", "").lower()
    parts = DURATION_PART.findall(text) if DURATION.fullmatch(text) else []
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if not seconds:
        raise FileError(
            "--deadline",
            "is no duration",
            value=deadline,
            allowed="such as 5d, 36h, 1d12h or 90min",
        )
    return seconds


def _sheets(prices: Path | None, providers: Sequence[str]) -> tuple[RentalSheet, ...]:
    """Return what is rented: a file's, or the catalogue's.

    Raises:
        FileError: The file is wrong, or providers were named beside it.
    """
    from rlplan.planner.renting.offered import catalogue, read_prices

    if prices is None:
        return catalogue(tuple(providers))
    if providers:
        problem = "names providers of the catalogue, in place of which --prices stands"
        raise FileError(
            "--provider", problem, value=", ".join(providers), allowed="without --prices"
        )
    return (read_prices(prices),)


class Rented(NamedTuple):
    """Hold a job before it is resolved, and where it was read: its file, and what relative paths in it are relative to.

    Attributes:
        pinned: What plans keep of a framework's script.
    """

    job: Job
    file: Path
    folder: Path
    pinned: Pinned


def _rented(path: Path, given: GivenOptions, framework: str | None) -> Rented:
    """Return the job of a job's file, or of a framework's script or recipe.

    Args:
        given: What is said beside a script; GPUs are chosen among for jobs too.

    Raises:
        UserError: The file is wrong, or an option is missing or of no use.
    """
    from rlplan.planner.renting.searching import read_rented_job
    from rlplan.planner.requests.pinned import NOTHING_PINNED

    script = configured(path, given, framework, says_gpu=False)
    if script is None:
        return Rented(read_rented_job(path), path, path.parent, NOTHING_PINNED)
    for each in script.doubts():
        say(each)
    return Rented(script.found.job, path, Path(), script.pinned)


def _request(
    rented: Rented,
    steps: int,
    limits: RentalLimits,
    searched: tuple[Mode | None, str | None, float | None],
    known: tuple[Path | None, Path | None, Path | None],
) -> RentRequest:
    """Return what is asked.

    Args:
        searched: The mode, the framework, and the seconds of a search.
        known: Files: a profile, a site's factors, lengths over the run.
    """
    from rlplan.planner.measured.length_curves import length_curve
    from rlplan.planner.renting.searching import OBJECTIVE, RentRequest
    from rlplan.profiles.facts import load_facts
    from rlplan_cli.commands.search import requested_job
    from rlplan_cli.interface import named_modes

    mode, target, seconds = searched
    profile, site, lengths = known
    return RentRequest(
        job=requested_job(rented.job, OBJECTIVE, mode, None, {}),
        folder=rented.folder,
        file=str(rented.file),
        steps=steps,
        facts_of=partial(load_facts, profile=profile, site=site),
        curve=None if lengths is None else length_curve(lengths),
        limits=limits,
        target=target,
        pinned=named_modes(rented.pinned, mode),
        seconds=seconds,
    )


def _check(request: RentRequest, first: Offered) -> None:
    """Refuse a job that no search takes, before the first one begins."""
    from rlplan.executor.learning.rules import check_rule_names
    from rlplan.planner.renting.searching import job_on
    from rlplan.planner.search import check_searched

    resolved = job_on(request, first)
    check_searched(resolved, request.file, request.pinned.asked.modes)
    check_rule_names(resolved, Path(request.file))


def _print(answer: RentalAnswer) -> None:
    from rlplan.reports.tables.renting import (
        answer_lines,
        not_counted_words,
        offers_table,
        search_words,
    )

    sys.stdout.write("\n".join(answer_lines(answer)) + "\n\n")
    print_table(
        "No other offer is faster and cheaper both", offers_table(answer.front, answer.chosen)
    )
    for line in (f"looked at {search_words(answer)}", not_counted_words(answer), *answer.notes):
        say(line)


def _write(out: Path, answer: RentalAnswer) -> list[Path]:
    """Write the page and the plans of the front, in place of those of an answer before; return their paths."""
    from rlplan.files.writing import write_json
    from rlplan.reports.pages.renting import write_rent_page
    from rlplan.results.stored import write_plan

    was_rented = (out / "rent.json").is_file()
    written = [write_rent_page(out, answer), out / "rent.json"]
    write_json(out / "rent.json", answer)
    for number, offer in enumerate(answer.front, 1):
        path = out / f"plan-{number}.yaml"
        write_plan(path, offer.plan)
        written.append(path)
    number = len(answer.front) + 1
    while was_rented and (old := out / f"plan-{number}.yaml").is_file():
        old.unlink()
        number += 1
    return written
