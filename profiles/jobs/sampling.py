"""How a job samples groups again, with what its framework does then."""

from dataclasses import replace

from rlplan.algorithms import load_algorithm
from rlplan.framework import FrameworkSheet
from rlplan.job import DynamicSampling, Job
from rlplan.profiles.jobs.checks import JobPlace


def sampling_of(job: Job, sheet: FrameworkSheet, place: JobPlace) -> DynamicSampling | None:
    """Return how a job samples groups again, with what its framework does then.

    Raises:
        FileError: The project's own loop, which judges nothing first and generates a global batch a round, is asked to do otherwise.
    """
    sampling = job.dynamic_sampling
    if sheet.runs and sampling is not None and sampling.filters_first:
        problem = "what each round samples goes through every pass"
        raise place.error("dynamic_sampling.filters_first", problem, value=True, allowed="false")
    if sheet.runs and sampling is not None and sampling.batches_at_once != 1:
        problem = "each round generates a global batch"
        at = sampling.batches_at_once
        raise place.error("dynamic_sampling.batches_at_once", problem, value=at, allowed="1")
    if not sheet.filters_first or not load_algorithm(job.algorithm).resamples:
        return sampling
    sampling = sampling or DynamicSampling()
    return sampling if sampling.filters_first is not None else replace(sampling, filters_first=True)
