"""Throughput: the fewest seconds per token."""

from rlplan.planner.objectives import Objective, SecondRates
from rlplan.units import ShownAs

OBJECTIVE = Objective(
    about="seconds per token",
    unit="seconds per token",
    per_tokens=1.0,
    figure=lambda forecast: forecast.iteration_seconds,
    seconds_rate=1.0,
    pool_rates=lambda _: SecondRates(),
    shown_as=ShownAs(heading="Tokens/s", is_reciprocal=True, digits=0),
    limit="iteration_seconds",
    limit_unit="s",
)
