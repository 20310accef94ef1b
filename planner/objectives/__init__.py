"""Objectives, one file each: what a search minimises, as `OBJECTIVE`; the name is the file's name.

They know forecasts and rates of pools, nothing of layouts, and search nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlplan.plug_ins import PlugIns
from rlplan.units import ShownAs

if TYPE_CHECKING:
    from rlplan.job import Job
    from rlplan.plan import Flow
    from rlplan.results.forecast import Forecast
    from rlplan.simulator.timeline.expenses import PoolRates

TOKENS_PER_MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondRates:
    """Hold what a pool's seconds add to an objective's figure of an iteration; none is negative.

    Attributes:
        held: For every second of the iteration, in which the pool is held.
        computing: On top, for every second in which it infers, trains or runs reward functions.
        moving: On top, for every second in which it generates or changes layouts.
    """

    held: float = 0.0
    computing: float = 0.0
    moving: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Say what a search minimises: a figure of an iteration that is linear in seconds, per token.

    The figure is `seconds_rate` times the iteration's seconds and what `pool_rates` say of each pool's.
    With rates that are not negative, layouts that others beat in the seconds of every task and in memory
    are beaten in the objective, and bounds on seconds give a bound on it: the search needs no more. Where the figure is
    that times what the age of samples makes it, `least_factor` bounds what it is multiplied with.

    Attributes:
        about: For the help, such as `seconds per token`.
        unit: Of its values, for people.
        per_tokens: Tokens that a value is for.
        figure: What a forecast says of a whole iteration.
        seconds_rate: What every second of the iteration adds, whatever the pools are.
        pool_rates: What the seconds of a pool add, given its rates in money and power.
        least_factor: What that is multiplied with at least, given the job, how iterations follow each other and after how many
            weights are synced: 1 or more. None: it is not multiplied.
        shown_as: How its values are shown in tables and pictures.
        limit: The field of `Specs` that limits the figure; None where there is none.
        limit_unit: Of the figure, for people.
    """

    about: str
    unit: str
    per_tokens: float = TOKENS_PER_MILLION
    figure: "Callable[[Forecast], float]"
    seconds_rate: float = 0.0
    pool_rates: "Callable[[PoolRates], SecondRates]"
    least_factor: "Callable[[Job, Flow, int], float] | None" = None
    shown_as: ShownAs
    limit: str | None = None
    limit_unit: str = ""

    @property
    def weighs_age(self) -> bool:
        """Tell whether of plans with equal seconds the one with fresher samples is better."""
        return self.least_factor is not None

    def value(self, forecast: "Forecast", tokens: float) -> float:
        """Return what a forecast is worth, in `unit`; less is better.

        Args:
            tokens: Prompt and response tokens of an iteration, over which everything is spread.
        """
        return self.figure(forecast) * self.per_tokens / tokens


OBJECTIVES = PlugIns[Objective](__name__, __path__, kind="objective", attribute="OBJECTIVE")
objective_names, load_objective = OBJECTIVES.names, OBJECTIVES.load


def limited_objectives() -> dict[str, str]:
    """Return the names of objectives whose figure a spec limits, by the spec."""
    found = {load_objective(name).limit: name for name in objective_names()}
    return {limit: name for limit, name in found.items() if limit is not None}


def objectives_words() -> str:
    """Return all objectives for a help text, such as `cost (USD per token) or energy (...)`."""
    *first, last = (f"{name} ({load_objective(name).about})" for name in objective_names())
    return f"{', '.join(first)} or {last}" if first else last
