"""Cost: the least money per token; every GPU that a pool holds is paid for, busy or not."""

from rlplan.planner.objectives import Objective, SecondRates
from rlplan.units import ShownAs

OBJECTIVE = Objective(
    about="USD per token",
    unit="USD per million tokens",
    figure=lambda forecast: forecast.cost_usd,
    pool_rates=lambda rates: SecondRates(held=rates.usd_per_second),
    shown_as=ShownAs(heading="USD/M tokens", digits=3),
    limit="cost_usd",
    limit_unit="USD",
)
