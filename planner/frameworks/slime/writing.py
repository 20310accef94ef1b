"""slime: a launch script of its flags and Megatron's, one a line."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from rlplan.job import Job
from rlplan.planner.configs.megatron.writing import text_of_flags, trainer_leaves, write_flags
from rlplan.planner.configs.reading.sheet import ConfigSheet
from rlplan.planner.configs.writing.export import UPDATE, Export
from rlplan.planner.placements.arrangements import Arrangement
from rlplan.profiles.catalog import resolve_job

FILTER: Final = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"


def write(export: Export) -> str:
    """Write a plan's values, and return the command that starts them."""
    if "critic" in export.roles and not trainer_leaves(export):
        where, problem = f"tasks.{UPDATE}.offload", "a trainer with a critic stays on its GPUs"
        raise export.refused(where, problem, "true, of all states", False)
    return write_flags(export, filter_path=FILTER)


def as_run(job: Job, sheet: ConfigSheet, trainer: str, way: Arrangement) -> Job:
    """Return a job as slime of today runs it: a step's only update takes its own log-probabilities for the old ones.

    Jobs of 0.2 and before say that a pass tells them, which no key asks for any more (`reuses_log_probs` of its reading).
    """
    del sheet, trainer, way
    if job.old_log_prob != "trainer":
        return job
    return resolve_job(replace(job, old_log_prob=None), Path(), file="job")


def text_of(export: Export, start: str) -> str:
    """Return the script."""
    return text_of_flags(export, start)
