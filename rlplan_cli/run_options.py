"""Options that ask of a whole run: how many steps, for how much money, in how many days."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rlplan.errors import FileError

if TYPE_CHECKING:
    from rlplan.planner.answers.run_limits import AskedRun
    from rlplan.results.run import RunForecast

# Of a run: each is added up.
MOST_STEPS = 1_000_000
RUN = "A whole run"


class RunOptions(NamedTuple):
    """Hold what is asked of a whole run."""

    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_STEPS,
            help="Forecast a run of this many steps: its days and USD.",
            rich_help_panel=RUN,
        ),
    ] = None
    budget_usd: Annotated[
        float | None,
        typer.Option(min=0.0, help="What the run may cost, at p90.", rich_help_panel=RUN),
    ] = None
    max_days: Annotated[
        float | None,
        typer.Option(min=0.0, help="How many days the run may take, at p90.", rich_help_panel=RUN),
    ] = None


def asked_run(asked: RunOptions, known: int | None = None) -> AskedRun | None:
    """Return what is asked of a run; None where nothing is.

    Args:
        known: Steps that the configuration itself has, where `--steps` is not given.

    Raises:
        FileError: A limit has no steps, or is none.
    """
    from rlplan.planner.answers.run_limits import AskedRun
    from rlplan.results.renting import RentalLimits
    from rlplan.units import seconds_from_days

    steps, budget_usd, max_days = asked
    for option, value in (("--budget-usd", budget_usd), ("--max-days", max_days)):
        if value is None:
            continue
        if not 0 < value < math.inf:
            raise FileError(option, "is no limit", value=value, allowed="a number above 0")
        if steps is None and known is None:
            problem = "is of a whole run, and nothing says how many steps it has"
            raise FileError(option, problem, value=value, allowed="with --steps")
    if asked == RunOptions():
        return None
    number = steps or known
    assert number is not None, "asked of a limit above"
    days = None if max_days is None else seconds_from_days(max_days)
    limits = RentalLimits(budget_usd=budget_usd, deadline_seconds=days)
    return AskedRun(steps=number, limits=limits)


def keeps_run(asked: AskedRun | None, run: RunForecast | None) -> bool:
    """Tell whether a run fits to its end and its p90 keeps what was asked; a run that nothing was asked of does."""
    if asked is None or run is None:
        return True
    return not run.infeasible_reasons and asked.limits.keeps(run)
