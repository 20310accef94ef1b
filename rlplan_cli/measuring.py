"""Measuring this machine for a profile: `rlplan profile`, the demo, and benchmarks."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rlplan_cli.terminal import progress_bar

if TYPE_CHECKING:
    from profiles.probes.bench.contract import JobRules
    from profiles.tables.table import Profile
    from rlplan.job import Job

# Prompts on which a profile times reward functions: enough to see short and long ones.
ROWS_OF_RULES = 64


def measure_machine(
    out: Path, *, job: Job | None, folder: Path, device: str, devices: int, quick: bool
) -> Profile:
    """Measure this machine into the profile folder `out`, resuming what is there.

    Args:
        job: What plans of this job can ask for is measured too, by the executor's own passes.
        folder: What paths in the job are relative to.
    """
    from profiles.probes.session import profile_machine

    with ExitStack() as stack:
        progress = stack.enter_context(progress_bar("profile"))
        runner = rules = None
        if job is not None:
            from executor.pass_runner import RayPassRunner
            from profiles.sheets import sheet_of

            kind = "cpu" if sheet_of(job, device).kind == "cpu" else "cuda"
            rules = job_rules(job, folder)
            runner = stack.enter_context(RayPassRunner(devices, kind, job))
        return profile_machine(
            name=out.name,
            device=device,
            job=job,
            runner=runner,
            out=out,
            devices=devices,
            quick=quick,
            progress=progress,
            rules=rules,
        )


def job_rules(job: Job, folder: Path) -> JobRules | None:
    """Return the functions that judge a job's responses, with prompts to try them on.

    None without any, or where the job gives their time and no prompts: a function may want more of a
    row than prompts that are made up have.

    Raises:
        UserError: There is no such function, its file cannot be imported, or the prompts cannot be read.
    """
    from executor.data.workload import first_rows
    from executor.learning.rules import rule_functions
    from executor.workers.stages.rule import judging
    from profiles.probes.bench.contract import JobRules

    functions = rule_functions(job, folder)
    given = job.rewards is not None and job.rewards.function_seconds_per_sample is not None
    if given and job.prompts_file is None:
        return None
    if not functions:
        return None
    rows = first_rows(job, folder, ROWS_OF_RULES)
    return JobRules(functions, rows, judging(job, rows, folder))
