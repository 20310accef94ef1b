"""What a change gains, as an interval, and until when a restart pays for it.

Two forecasts of one job share most of what they are off by: the same model on the same GPUs, the same lengths, and factors
of the same site. So a gain is no difference of two intervals. Of every task, with relative spreads a and b before and after:

- a task that has the same layout in both is off by the same share in both, so that only the difference of the two is
off; a task that takes as long as before adds nothing;
- of others, what is common, s (the smaller of a and b, without the spread of a single forecast at a calibrated site), moves both sides
  alike: it is off by s times the difference of the two;
- the rest, by which each layout is off by itself, sqrt(a^2 - s^2) and sqrt(b^2 - s^2), adds up in squares.

`within_site` of `profiles/fits/calibration.yaml` says how far single forecasts at a calibrated site are off: it is never
taken for common. Where the executor runs the plans on a machine that was profiled, `within_machine` says so. A step that takes 0.9 times its forecast is taken to do so with the change too: gains are scaled to it. Where stages overlap, a step is no sum of its tasks, and the two steps are paired as one task each.
"""

from math import ceil, floor, hypot, sqrt

from rlplan.plan import Plan
from rlplan.profiles.analytic.efficiencies import load_spreads
from rlplan.results.advice import Answer, Gain
from rlplan.results.forecast import Forecast, TaskForecast

# Standard deviations from the middle of a normal distribution to its 90th percentile.
STDS_TO_P90 = 1.2816
# Shares of a task's seconds that differ by rounding alone.
SAME_FRACTION = 1e-9


def gain_of(
    now: tuple[Plan, Forecast],
    then: tuple[Plan, Forecast],
    measured_seconds: float | None = None,
    within_site: float | None = None,
) -> Gain:
    """Return what a step of another plan of the same job saves, in seconds.

    Args:
        now, then: A plan with its forecast; both with the same factors of a site.
        within_site: Relative, one sigma: by which single forecasts are off there; None takes that of frameworks' sites.
        measured_seconds: Of a step as it is, to whose share the gain then is one; None takes the forecast's.
    """
    (plan, before), (changed, after) = now, then
    middle = before.iteration_seconds - after.iteration_seconds
    if plan.flow.overlaps or changed.flow.overlaps:
        pairs = [_step_of(before) + _step_of(after)]
    else:
        known = [{each.name: each for each in one.costs} for one in (before, after)]
        pairs = [
            _paired(name, plan, changed, *(each.get(name) for each in known))
            for name in dict.fromkeys((*known[0], *known[1]))
        ]
    within = load_spreads().within_site.value if within_site is None else within_site
    width = STDS_TO_P90 * hypot(*(difference_spread_seconds(*pair, within) for pair in pairs))
    times = 1.0 if measured_seconds is None else measured_seconds / before.iteration_seconds
    ends = (middle - width, middle, middle + width)
    low, middle, high = (each * times for each in ends)
    return Gain(p10_seconds=low, p50_seconds=middle, p90_seconds=high)


def difference_spread_seconds(
    seconds: float, spread: float, other_seconds: float, other_spread: float, within_site: float
) -> float:
    """Return the spread of the difference of two forecasts that share errors, in seconds, one sigma.

    Args:
        spread, other_spread: Relative, one sigma.
        within_site: Relative, one sigma: by which single forecasts at one site are off, each by itself.
    """
    smaller = min(spread, other_spread)
    common = sqrt(max(0.0, smaller**2 - within_site**2))
    own, others = (sqrt(max(each, within_site) ** 2 - common**2) for each in (spread, other_spread))
    return hypot(common * (seconds - other_seconds), own * seconds, others * other_seconds)


def _paired(
    name: str,
    plan: Plan,
    changed: Plan,
    first: TaskForecast | None,
    second: TaskForecast | None,
) -> tuple[float, float, float, float]:
    """Return a task's (or transition's) seconds and relative spread in both plans.

    Of one with the same layout in both, the difference alone: a task that is there once.
    """
    seconds, spread = _task_of(first)
    other_seconds, other_spread = _task_of(second)
    layout = plan.tasks.get(name)
    is_same = layout is not None and layout == changed.tasks.get(name)
    if is_same or abs(seconds - other_seconds) <= SAME_FRACTION * max(seconds, other_seconds):
        more = max(spread, other_spread)
        return abs(seconds - other_seconds), more, 0.0, more
    return seconds, spread, other_seconds, other_spread


def _task_of(task: TaskForecast | None) -> tuple[float, float]:
    """Return a task's seconds and their relative spread; 0 and 0 of one that a plan does not have."""
    if task is None or task.seconds <= 0:
        return 0.0, 0.0
    return task.seconds, max(0.0, task.interval_seconds[1] / task.seconds - 1) / STDS_TO_P90


def _step_of(forecast: Forecast) -> tuple[float, float]:
    seconds, high = forecast.iteration_seconds, forecast.iteration_seconds_interval[1]
    return seconds, max(0.0, high / seconds - 1) / STDS_TO_P90


def deadline_step(gain: Gain, restart_seconds: float, last_step: int) -> int | None:
    """Return the last step after which a restart still pays, the low end of the gain taken; None where none is.

    Args:
        last_step: Number of the training's last step.
    """
    if gain.p10_seconds <= 0:
        return None
    needed = restart_seconds / gain.p10_seconds
    if needed > last_step:
        return None
    after = last_step - max(1, ceil(needed))
    return after if after >= 0 else None


def answer_of(
    gain: Gain | None, restart_seconds: float | None, step: int, steps_left: int
) -> tuple[Answer, int | None]:
    """Return whether a change pays after a step, with the last step after which it does.

    Args:
        gain: Of the best change; None where there is none.
    """
    if gain is None or gain.p10_seconds <= 0:
        return "keep", None
    if restart_seconds is None:
        return ("restart unknown" if steps_left else "too late"), None
    deadline = deadline_step(gain, restart_seconds, step + steps_left)
    pays = steps_left > 0 and deadline is not None and step <= deadline
    return ("change" if pays else "too late"), deadline


def most_restart_seconds(gain: Gain, steps_left: int) -> float:
    """Return what a restart may cost at most so that it pays, to the second below."""
    return float(max(0, floor(gain.p10_seconds * steps_left)))
