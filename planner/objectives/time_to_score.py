"""Time to a score: the fewest seconds to get as far as fresh samples would, assuming what their age costs."""

from typing import TYPE_CHECKING

from rlplan.planner.objectives import Objective, SecondRates
from rlplan.units import ShownAs

if TYPE_CHECKING:
    from rlplan.job import Job
    from rlplan.plan import Flow
    from rlplan.results.forecast import Forecast


def _fresh_seconds(forecast: "Forecast") -> float:
    progress = forecast.progress
    assert progress is not None, "forecasts of jobs with this objective have it"
    return progress.fresh_seconds


def _least_factor(job: "Job", flow: "Flow", sync_every: int) -> float:
    from rlplan.simulator.timeline.progress import least_needed  # noqa: PLC0415 -- help lists objectives

    return least_needed(job, flow, sync_every)


OBJECTIVE = Objective(
    about="seconds per token, as good as a fresh one",
    unit="seconds per fresh token",
    per_tokens=1.0,
    figure=_fresh_seconds,
    seconds_rate=1.0,
    pool_rates=lambda _: SecondRates(),
    least_factor=_least_factor,
    shown_as=ShownAs(heading="Fresh tokens/s", is_reciprocal=True, digits=0),
)
