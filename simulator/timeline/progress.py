"""How far an iteration gets whose samples are old: what a job that minimises the time to a score is forecast with.

With samples that are `age` iterations old on average, 1 + slope * age iterations get as far as one of fresh samples.
Slopes with their spread stand in `profiles/fits/sample_ages.yaml`, fitted to pairs of runs (`rlplan.evals.sample_ages`).
"""

from dataclasses import replace

from rlplan.job import Job
from rlplan.plan import Flow, Plan
from rlplan.profiles.analytic.efficiencies import AgeSlopes, load_age_costs
from rlplan.results.forecast import Forecast
from rlplan.results.progress import Correction, ProgressForecast, stretched

WORDS: dict[Correction, str] = {
    "none": "no correction for old samples (hyperparameters.importance_cap): one of AReaL's runs learnt nothing so",
    "decoupled": "decoupled PPO",
}


def needed_iterations(age: float, slope: float) -> float:
    """Return the iterations on samples of a mean age, in iterations, that get as far as one of fresh samples."""
    return 1 + slope * age


def correction_of(job: Job) -> Correction:
    """Return how a job corrects for samples of older weights."""
    return "none" if job.hyperparameters.importance_cap is None else "decoupled"


def mean_age(plan: Plan, forecast: Forecast) -> float:
    """Return the mean age of samples in iterations: as simulated, or that of every sample of a batch ahead."""
    if forecast.overlap is not None:
        return forecast.overlap.staleness_mean
    assert plan.flow.ahead is not None, "generation that never stops is played sample by sample"
    return float(plan.flow.ahead)


def least_age(flow: Flow, sync_every: int) -> float:
    """Return an age in iterations that samples of no plan are below on average.

    Weights that are synced every n iterations are 0 to n - 1 old in the iterations until the next sync. Beyond that
    samples may be fresh, where generation is slow and training takes no time.
    """
    return (sync_every - 1) / 2 if flow.ahead is None else float(flow.ahead)


def least_needed(job: Job, flow: Flow, sync_every: int) -> float:
    """Return iterations that no plan with such a schedule needs less of for one of fresh samples."""
    return needed_iterations(least_age(flow, sync_every), _slopes(job).median.value)


def with_progress(forecast: Forecast, plan: Plan) -> Forecast:
    """Return a plan's forecast with how far its iterations get, and the assumption in words."""
    costs, slopes = load_age_costs(), _slopes(plan.job)
    age = mean_age(plan, forecast)
    needed, most = (needed_iterations(age, each.value) for each in (slopes.median, slopes.most))
    low, high = 1.0, most
    seconds, interval = stretched(
        forecast.iteration_seconds, forecast.iteration_seconds_interval, needed, (low, high)
    )
    found = ProgressForecast(
        mean_age=age,
        correction=correction_of(plan.job),
        needed_iterations=needed,
        needed_interval=(low, high),
        fresh_seconds=seconds,
        fresh_seconds_interval=interval,
        is_beyond=age > costs.oldest.value,
    )
    return replace(forecast, progress=found, assumptions=(_words(found), *forecast.assumptions))


def _slopes(job: Job) -> AgeSlopes:
    costs = load_age_costs()
    return costs.none if correction_of(job) == "none" else costs.decoupled


def _words(found: ProgressForecast) -> str:
    if not found.mean_age:
        return "samples are fresh, so that every step counts as one (docs/time-to-score.md)"
    low, high = found.needed_interval
    beyond = "; no run that this is from had older ones" if found.is_beyond else ""
    return (
        f"{found.needed_iterations:.2f} steps (p10 to p90 {low:.2f} to {high:.2f}) on samples {found.mean_age:.2f} steps old get "
        f"as far as one on fresh samples, with {WORDS[found.correction]}{beyond} (docs/time-to-score.md)"
    )
