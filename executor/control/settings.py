"""The hyperparameters of a job with what it leaves open filled in by its algorithm."""

from dataclasses import replace

from rlplan.dataflow import Algorithm
from rlplan.job import Hyperparameters


def effective_settings(algorithm: Algorithm, settings: Hyperparameters) -> Hyperparameters:
    """Return hyperparameters without any None: the job's where it says something."""
    high = settings.clip_ratio_high
    if high is None:
        high = max(settings.clip_ratio, algorithm.clip_ratio_high or 0.0)
    return replace(
        settings,
        kl_in=settings.kl_in or algorithm.kl_in,
        clip_ratio_high=high,
        loss_mean=settings.loss_mean or algorithm.loss_mean,
    )
