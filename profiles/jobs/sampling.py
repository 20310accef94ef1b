"""How a job samples groups again, with what its framework does then."""

from dataclasses import replace

from rlplan.algorithms import load_algorithm
from rlplan.framework import FrameworkSheet
from rlplan.job import DynamicSampling, Job
from rlplan.profiles.jobs.checks import JobPlace


def sampling_of(job: Job, sheet: FrameworkSheet, place: JobPlace) -> DynamicSampling | None:
    """Return how a job samples groups again, with what its framework does then.

    Raises:
        FileError: The project's own loop, which judges nothing first, is asked to.
    """
    sampling = job.dynamic_sampling
    if sheet.runs and sampling is not None and sampling.filters_first:
        problem = "what each round samples goes through every pass"
        raise place.error("dynamic_sampling.filters_first", problem, value=True, allowed="false")
    if sheet.runs and sampling is not None and sampling.together:
        problem = "each round waits for the one before"
        raise place.error("dynamic_sampling.together", problem, value=True, allowed="false")
    usual = {"filters_first": sheet.filters_first, "together": sheet.samples_together}
    if not any(usual.values()) or not load_algorithm(job.algorithm).resamples:
        return sampling
    given = sampling or DynamicSampling()
    return replace(
        given, **{name: True for name, on in usual.items() if on and getattr(given, name) is None}
    )
