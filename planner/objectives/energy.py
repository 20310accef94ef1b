"""Energy: the fewest joules per token, of boards and of the workers of reward functions."""

from rlplan.planner.objectives import Objective, SecondRates
from rlplan.units import ShownAs

OBJECTIVE = Objective(
    about="joules per token",
    unit="joules per million tokens",
    figure=lambda forecast: forecast.energy_joules,
    pool_rates=lambda rates: SecondRates(
        held=rates.idle_watts, computing=rates.computing_watts, moving=rates.moving_watts
    ),
    shown_as=ShownAs(heading="kJ/M tokens", divisor=1000, digits=1),
    limit="energy_joules",
    limit_unit="J",
)
