"""What a search minimises: seconds, money or energy per token, each with a bound.

All three grow with the length of the iteration and with the seconds in which each pool works, and
with nothing else that layouts decide once the pools' devices and sizes are chosen. So a layout that
another one beats in the seconds of every task and in memory is beaten in every objective, and a bound
on the seconds is a bound on the objective: `Objective.bound` of lower bounds never exceeds
`Objective.value` of a plan that they bound.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rlplan.errors import UnknownNameError
from rlplan.job import Job
from rlplan.results.forecast import Forecast
from simulator.timeline.assemble import batch_tokens
from simulator.timeline.expenses import PoolLoad, iteration_joules, iteration_usd

TOKENS_PER_MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Hold what a search minimises.

    Attributes:
        unit: Of its values, for people.
        batch_tokens: Prompt and response tokens of an iteration, over which everything is spread.
        scale: Tokens that a value is for.
        per_iteration: Its value for a whole iteration, from the forecast.
        bound_per_iteration: A value that no iteration can be below, from the least seconds that it
            takes and the least seconds in which each of its pools works.
    """

    name: str
    unit: str
    batch_tokens: float
    scale: float
    per_iteration: Callable[[Forecast], float]
    bound_per_iteration: Callable[[float, Iterable[PoolLoad]], float]

    def value(self, forecast: Forecast) -> float:
        """Return what a forecast is worth, in `unit`; less is better."""
        return self.per_iteration(forecast) * self.scale / self.batch_tokens

    def bound(self, iteration_seconds: float, loads: Iterable[PoolLoad] = ()) -> float:
        """Return a value, in `unit`, that no plan can be below whose seconds these bound.

        Sums run in the order of `loads`: in another order than the plan's pools the last digits may
        differ.

        Args:
            iteration_seconds: Lower bound on the length of the iteration.
            loads: For every pool its rates (`simulator.timeline.expenses.pool_rates`) and lower bounds on the
                seconds in which it computes and in which it moves bytes; pools left out cost nothing.
        """
        return self.bound_per_iteration(iteration_seconds, loads) * self.scale / self.batch_tokens


def _seconds(iteration_seconds: float, loads: Iterable[PoolLoad]) -> float:
    del loads
    return iteration_seconds


def _usd(iteration_seconds: float, loads: Iterable[PoolLoad]) -> float:
    return iteration_usd((load.rates for load in loads), iteration_seconds)


def _joules(iteration_seconds: float, loads: Iterable[PoolLoad]) -> float:
    return iteration_joules(loads, iteration_seconds)


_KINDS: dict[
    str,
    tuple[str, float, Callable[[Forecast], float], Callable[[float, Iterable[PoolLoad]], float]],
] = {
    "throughput": (
        "seconds per token",
        1.0,
        lambda forecast: forecast.iteration_seconds,
        _seconds,
    ),
    "cost": (
        "USD per million tokens",
        TOKENS_PER_MILLION,
        lambda forecast: forecast.cost_usd,
        _usd,
    ),
    "energy": (
        "joules per million tokens",
        TOKENS_PER_MILLION,
        lambda forecast: forecast.energy_joules,
        _joules,
    ),
}


def objective_names() -> tuple[str, ...]:
    """Return the names of all objectives."""
    return tuple(_KINDS)


def load_objective(name: str, job: Job) -> Objective:
    """Return the objective of that name for a job.

    Raises:
        UnknownNameError: There is no such objective.
    """
    if name not in _KINDS:
        raise UnknownNameError("objective", name, _KINDS)
    unit, scale, per_iteration, bound_per_iteration = _KINDS[name]
    return Objective(
        name=name,
        unit=unit,
        batch_tokens=batch_tokens(job),
        scale=scale,
        per_iteration=per_iteration,
        bound_per_iteration=bound_per_iteration,
    )
