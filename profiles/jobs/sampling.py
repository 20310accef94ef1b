"""How a job samples groups again, with what its framework does then."""

from dataclasses import replace

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import USUAL_ROUNDS, rounds_in_batches
from rlplan.framework import FrameworkSheet
from rlplan.job import DynamicSampling, Job
from rlplan.profiles.jobs.checks import JobPlace
from rlplan.profiles.sheets import load_framework


def sampling_of(job: Job, sheet: FrameworkSheet, place: JobPlace) -> DynamicSampling | None:
    """Return how a job samples groups again, with what its framework does then.

    Raises:
        FileError: The project's own loop, which judges nothing first and generates a global batch a round, is asked to do
            otherwise, or to sample again where no loss of it does; or a number of batches is said where all are generated together.
    """
    sampling, resamples = job.dynamic_sampling, load_algorithm(job.algorithm).resamples
    if sheet.runs and sampling is not None and not resamples:
        raise place.error("dynamic_sampling", f"{job.algorithm} does not sample groups again")
    if sheet.runs and sampling is not None and sampling.filters_first:
        problem = "what each round samples goes through every pass"
        raise place.error("dynamic_sampling.filters_first", problem, value=True, allowed="false")
    if sheet.runs and sampling is not None and sampling.batches_at_once != 1:
        problem = "each round generates a global batch"
        at = sampling.batches_at_once
        raise place.error("dynamic_sampling.batches_at_once", problem, value=at, allowed="1")
    if sheet.runs and sampling is not None and sampling.together:
        problem = "each round waits for the one before"
        raise place.error("dynamic_sampling.together", problem, value=True, allowed="false")
    usual = {"filters_first": sheet.filters_first, "together": sheet.samples_together}
    if sampling is None and not (resamples and any(usual.values())):
        return None
    given = sampling or DynamicSampling()
    own = {name: True for name, on in usual.items() if on and getattr(given, name) is None}
    found = replace(given, **own)
    if found.expected_rounds is None:
        found = replace(found, expected_rounds=_usual_rounds(found, sheet, job))
    return _checked(found, place)


def _usual_rounds(sampling: DynamicSampling, sheet: FrameworkSheet, job: Job) -> float:
    """Return the global batches that a framework is expected to sample in an iteration where nobody says it."""
    if not sheet.samples_whole_batches or sampling.together:
        return USUAL_ROUNDS
    prompts = job.workload.prompts
    batch = max(1, round(prompts * sampling.batches_at_once))
    return rounds_in_batches(prompts, batch, max(1, sampling.max_rounds * prompts // batch))


def _checked(sampling: DynamicSampling | None, place: JobPlace) -> DynamicSampling | None:
    at = 1.0 if sampling is None or not sampling.together else sampling.batches_at_once
    if at != 1:
        problem = "all that rounds sample is generated together, in no batches (dynamic_sampling.together)"
        raise place.error("dynamic_sampling.batches_at_once", problem, value=at, allowed="1")
    return sampling


def sampling_left_to(sheet: FrameworkSheet, job: Job) -> DynamicSampling | None:
    """Return how another framework samples a job's groups again: in its own order, the project's own where a loss does, as often as usual unless the job says otherwise."""
    sampling = job.dynamic_sampling
    if sampling is None or (sheet.runs and not load_algorithm(job.algorithm).resamples):
        return None
    at_once = 1.0 if sheet.samples_together else sampling.batches_at_once
    usual = _usual_rounds(sampling, load_framework(job.framework), job)
    rounds = None if sampling.expected_rounds == usual else sampling.expected_rounds
    return replace(
        sampling,
        filters_first=None,
        together=None,
        batches_at_once=at_once,
        expected_rounds=rounds,
    )
