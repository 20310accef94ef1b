"""slime: a launch script of its flags and Megatron's, one a line."""

from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Final

from rlplan.job import Job
from rlplan.planner.configs.megatron.reading import MOST_AHEAD
from rlplan.planner.configs.megatron.writing import (
    engine_gpus,
    engine_running,
    text_of_flags,
    trainer_leaves,
    write_flags,
)
from rlplan.planner.configs.reading.sheet import ConfigSheet
from rlplan.planner.configs.writing.export import UPDATE, Export
from rlplan.planner.placements.arrangements import Arrangement
from rlplan.profiles.catalog import resolve_job

# slime@624b824a8; before, examples/fully_async had it.
ROLLOUT: Final = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"
FILTER: Final = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"


def write(export: Export) -> str:
    """Write a plan's values, and return the command that starts them."""
    adapter = export.plan.job.adapter("actor")
    if adapter is not None:
        where, problem = "job.adapters.actor", "trains an adapter"
        raise export.refused(where, problem, "all weights", f"rank {adapter.rank}")
    if "critic" in export.roles and not trainer_leaves(export):
        where, problem = f"tasks.{UPDATE}.offload", "a trainer with a critic stays on its GPUs"
        raise export.refused(where, problem, "true, of all states", False)
    start = write_flags(export, filter_path=FILTER)
    if export.plan.flow.is_endless:
        _endless(export)
    return start


def _endless(export: Export) -> None:
    """Write a rollout that never stops: as many samples are under way at its engines as their age lets be.

    A script's own plan may have more, whose age its import takes to be at most that.

    Raises:
        FileError: The engines' own are more, or responses go on with the caches of older weights, which slime flushes.
    """
    plan, layout = export.plan, export.generate
    age, work = int(plan.staleness), plan.job.workload
    engines = plan.pool(layout.pool).gpus // engine_gpus(layout)
    each = work.samples_per_prompt + 1  # a sample that runs, and a group that waits behind it
    under_way = (age - 1) * work.sequences // (engines * each)
    if plan.in_flight != "recompute":
        problem = "keeps caches of older weights, which slime flushes"
        raise export.refused("in_flight", problem, "recompute", plan.in_flight)
    running = engine_running(layout)
    least = 1 + ceil(running * engines * each / work.sequences)
    if age == MOST_AHEAD < least and plan.made_by == export.sheet.title:
        under_way = running
    elif not least <= age <= MOST_AHEAD:
        problem = f"is no age of samples where {running} are under way at each of {engines} engines"
        allowed = (
            f"{least} to {MOST_AHEAD}"
            if least <= MOST_AHEAD
            else "fewer sequences at a time (max_running)"
        )
        raise export.refused("staleness", problem, allowed, plan.staleness)
    export.put("concurrency", under_way)
    export.put("rollout_function", ROLLOUT)


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
