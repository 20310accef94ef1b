"""A job's reward and cost functions as a profile times them: on the job's own prompts, as a worker calls them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlplan.job import Job
    from rlplan.profiles.probes.bench.contract import JobRules

# Prompts on which a profile times reward functions: enough to see short and long ones.
ROWS_OF_RULES = 64


def job_rules(job: Job, folder: Path) -> JobRules | None:
    """Return the functions that judge a job's responses, with prompts to try them on; None where none are timed.

    Raises:
        UserError: There is no such function, its file cannot be imported, or the prompts cannot be read.
    """
    rows = rows_of_rules(job, folder)
    return None if rows is None else rules_on(rows, job, folder)


def rows_of_rules(job: Job, folder: Path) -> list[dict[str, Any]] | None:
    """Return prompts on which a job's functions are timed.

    None without any functions, or where the job gives their time and no prompts: a function may want more of a
    row than prompts that are made up have.

    Raises:
        UserError: There is no such function, its file cannot be imported, or the prompts cannot be read.
    """
    from rlplan.executor.data.workload import first_rows
    from rlplan.executor.learning.rules import rule_functions

    functions = rule_functions(job, folder)
    given = job.rewards is not None and job.rewards.function_seconds_per_sample is not None
    if not functions or (given and job.prompts_file is None):
        return None
    return first_rows(job, folder, ROWS_OF_RULES)


def rules_on(rows: Sequence[dict[str, Any]], job: Job, folder: Path) -> JobRules:
    """Return the functions that judge a job's responses, with the prompts on which they are tried.

    Raises:
        UserError: There is no such function, or its file cannot be imported.
    """
    from rlplan.executor.learning.rules import rule_functions
    from rlplan.executor.workers.stages.rule import judging
    from rlplan.profiles.probes.bench.contract import JobRules

    return JobRules(rule_functions(job, folder), rows, judging(job, list(rows), folder))
