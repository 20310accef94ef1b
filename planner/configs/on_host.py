"""What a search says that finds nothing: which states, kept on the host, would make plans fit."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import UserError
from rlplan.job import Job
from rlplan.planner.configs.reading.sheet import ConfigSheet
from rlplan.planner.configs.run import unusual
from rlplan.planner.configs.sizes import ALL_ON_HOST, ON_HOST
from rlplan.results.forecast import SearchResult
from rlplan.units import show_seconds


def with_states_on_host(
    sheet: ConfigSheet, job: Job, framework: str, plans: Callable[[Job], SearchResult]
) -> str:
    """Say by which option of a trainer plans of a job fit that has none; nothing where none does, or no key says it.

    Searches leave such options as the job has them: they make an update several times as long.

    Args:
        framework: Name of the job's own framework sheet.
        plans: Searches a job.
    """
    learners = [
        task.role
        for task in tasks_of(load_algorithm(job.algorithm), job)
        if task.trains and task.role in sheet.roles
    ]
    trainers = [
        each for each in sheet.trainers.values() if framework in {each.framework, sheet.name}
    ]
    for option, size in ON_HOST.items():
        setting = next((each.sizes[size] for each in trainers if size in each.sizes), None)
        if setting is None or not learners:
            continue
        changed = {
            role: replace(job.trainer(role), **{option: ALL_ON_HOST[option]}) for role in learners
        }
        with suppress(UserError):
            found = plans(replace(job, trainers=unusual({**(job.trainers or {}), **changed})))
            step = show_seconds(found.plans[0].forecast.iteration_seconds)
            keys = " ".join(f"{setting.of(sheet.roles[role]).keys[0]}=true" for role in learners)
            said = ", ".join(f"trainers.{role}.{option}" for role in learners)
            return f"; with states kept on the host, by {keys} ({said} of a job), the best plan takes {step} a step"
    return ""
