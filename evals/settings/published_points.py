"""Points of published evaluations of whole systems: what a run is forecast to take."""

from collections.abc import Callable, Mapping
from functools import lru_cache

from rlplan.files.frozen import FrozenDict
from rlplan.planner.measured.framework_runs import PublishedRun, job_of, plan_of
from rlplan.profiles.facts import load_facts
from rlplan.results.accuracy import Point, Quantity
from rlplan.simulator.simulate import simulate
from rlplan.workload import mean_length

Progress = Callable[[int, int, str], None]


@lru_cache(maxsize=256)
def step_seconds(run: PublishedRun) -> float:
    """Return the seconds that a step of a run is forecast to take."""
    job = job_of(run)
    return simulate(plan_of(run, job), load_facts(job)).iteration_seconds * run.parts


@lru_cache(maxsize=256)
def task_seconds(run: PublishedRun) -> FrozenDict[str, float]:
    """Return the seconds that each task of a run is forecast to take alone."""
    job = job_of(run)
    costs = simulate(plan_of(run, job), load_facts(job)).costs
    return FrozenDict({cost.name: cost.seconds for cost in costs})


def step_tokens(run: PublishedRun) -> float:
    """Return the tokens that a run learns from in a step, prompts included."""
    work = job_of(run).workload
    each = mean_length(work.prompt_tokens) + mean_length(work.response_tokens)
    return work.sequences * run.parts * each


def forecast_points(
    figure: str,
    quantity: Quantity,
    runs: Mapping[tuple[str, str], PublishedRun],
    published: Mapping[tuple[str, str], float],
    progress: Progress | None = None,
    seconds_of: Callable[[PublishedRun], float] = step_seconds,
) -> tuple[Point, ...]:
    """Return a point for each run, by panel and series.

    Args:
        seconds_of: What a step of a run takes, where something beside the step was measured with it.
        progress: Called with (done, total, point) before each.
    """
    points = []
    for done, ((panel, series), run) in enumerate(runs.items()):
        if progress:
            progress(done, len(runs), f"{figure}, {panel}, {series}")
        seconds = seconds_of(run)
        points.append(
            Point(
                figure=figure,
                panel=panel,
                series=series,
                gpus=run.gpus,
                quantity=quantity,
                forecast=seconds if quantity == "seconds" else step_tokens(run) / seconds,
                published=published.get((panel, series)),
                plan=plan_words(run),
            )
        )
    return tuple(points)


def plan_words(run: PublishedRun) -> str:
    """Return a run's split of devices and its mode in a few words."""
    if not run.rollout_gpus:
        return f"all {run.gpus} together, generation with TP {run.rollout_tp}"
    split = f"{run.rollout_gpus} generate with TP {run.rollout_tp}, {run.train_gpus} train"
    if run.mode != "async":
        return f"{split}, {run.mode}"
    return f"{split}, async, staleness {run.staleness:g}"
