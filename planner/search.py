"""Find the best plan by an objective, under limits, with its runners-up and a certificate."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlplan.collecting import resting_collector
from rlplan.errors import FileError
from rlplan.job import Job, Specs
from rlplan.plan import Mode
from rlplan.planner.objectives import load_objective
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.requests.specs import with_deadline
from rlplan.planner.searchers import load_searcher
from rlplan.planner.searchers.exact import Progress
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import SearchResult
from rlplan.simulator.simulate import dropped_episodes, over_samples_streams, streams_texts

DEFAULT_SEARCHER = "exact"


def search(
    job: Job,
    facts: Facts,
    *,
    searcher: str = DEFAULT_SEARCHER,
    pinned: Pinned = NOTHING_PINNED,
    progress: Progress | None = None,
    objective: str | None = None,
    specs: Specs | None = None,
    **options: Any,  # noqa: ANN401 -- each searcher has its own, such as a budget of seconds
) -> SearchResult:
    """Return plans of a resolved job, best first.

    Args:
        pinned: What the user pinned (`rlplan.planner.requests.drafts` reads it from a partial plan); the rest is searched.
        objective: What to minimise (`rlplan.planner.objectives`); None takes the job's.
        specs: Limits that plans keep; None takes the job's.
        options: Of the searcher, such as `seconds`.

    Raises:
        UnknownNameError: No searcher or objective of that name exists.
        InfeasibleError: No plan fits the cluster and keeps the limits.
        FileError: See `check_searched`.
    """
    check_searched(job, modes=pinned.asked.modes)
    if objective is not None and load_objective(objective).weighs_age:
        job = replace(job, objective=objective)  # forecasts of its plans then say how far they get
    with resting_collector():
        return load_searcher(searcher)(
            job,
            facts,
            pinned=pinned,
            progress=progress,
            objective=objective,
            specs=with_deadline(job.specs if specs is None else specs, job),
            **options,
        )


def check_searched(job: Job, file: str = "job", modes: Sequence[Mode] = ()) -> None:
    """Check that the simulator plays what a job asks for, whatever plan it runs as.

    Args:
        file: What to call the job in messages.
        modes: Those in which alone it may run; none given: all.

    Raises:
        FileError: The job has replicas that read prompts alone, begins more episodes than it learns from, or more samples of
            a prompt or texts at hand though its responses are to stream.
    """
    if job.prefill is not None:
        words = "is forecast for a plan at hand (rlplan simulate, rlplan check), and not searched"
        raise FileError(
            file, words, field="prefill.replicas", value=job.prefill.replicas, allowed="no prefill"
        )
    for name, begun in dropped_episodes(job.workload).items():
        words, instead = "is not simulated where environments answer", "1"
        raise FileError(file, words, field=f"workload.{name}", value=begun, allowed=instead)
    for mode in (each for each in modes if streams_texts(job.workload, each)):
        words, allowed = f"is not simulated in mode {mode}", "the modes sync and one-step-off"
        raise FileError(file, words, field="workload.texts", allowed=allowed)
    for mode in (each for each in modes if over_samples_streams(job.workload, each)):
        words = f"drops samples of a prompt, which is not simulated in mode {mode}"
        allowed, begun = "1, or the modes sync and one-step-off", job.workload.over_sampling
        raise FileError(file, words, field="workload.over_sampling", value=begun, allowed=allowed)
