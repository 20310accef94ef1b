"""What a search says that finds nothing: which states, kept on the host, would make plans fit."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import UserError
from rlplan.job import Job
from rlplan.planner.configs.proposing.changes import typed_value
from rlplan.planner.configs.reading.sheet import ROLE, ConfigSheet, Scalar, TrainerSheet
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
        trainer = next((each for each in trainers if size in each.sizes), None)
        if trainer is None or not learners:
            continue
        changed = {
            role: replace(job.trainer(role), **{option: ALL_ON_HOST[option]}) for role in learners
        }
        with suppress(UserError):
            found = plans(replace(job, trainers=unusual({**(job.trainers or {}), **changed})))
            step = show_seconds(found.plans[0].forecast.iteration_seconds)
            keys = " ".join(
                f"{key}={typed_value(value)}"
                for role in learners
                for key, value in _assigned(option, sheet, trainer, sheet.roles[role])
            )
            said = ", ".join(f"trainers.{role}.{option}" for role in learners)
            return f"; with states kept on the host, by {keys} ({said} of a job), the best plan takes {step} a step"
    return ""


def _assigned(
    option: str, sheet: ConfigSheet, trainer: TrainerSheet, prefix: str
) -> Iterator[tuple[str, Scalar]]:
    """Yield the keys of a role that keep its states on the host, with what has to be said beside: how much, and of which kind it is."""
    setting = trainer.sizes[ON_HOST[option]].of(prefix)
    yield setting.keys[0], setting.word_for(meant=True)
    if option == "host_optimizer" and "host_fraction" in trainer.sizes:
        yield trainer.sizes["host_fraction"].of(prefix).keys[0], ALL_ON_HOST[option]
    if setting.keys[0] in sheet.only_where:
        yield from ((key.replace(ROLE, prefix), value) for key, value in trainer.fixed.items())
