"""Measuring this machine for a profile: `rlplan profile`, the demo, and benchmarks."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rlplan_cli.terminal import progress_bar

if TYPE_CHECKING:
    from rlplan.job import Job
    from rlplan.profiles.tables.table import Profile
    from rlplan_cli.profiling.nodes import ProfileRequest


def measure_machine(
    out: Path, *, job: Job | None, folder: Path, device: str, devices: int, quick: bool
) -> Profile:
    """Measure this machine into the profile folder `out`, resuming what is there.

    Args:
        job: What plans of this job can ask for is measured too, by the executor's own passes.
        folder: What paths in the job are relative to.
    """
    from rlplan.profiles.probes.bench.session import profile_machine
    from rlplan_cli.profiling.rules import job_rules

    with ExitStack() as stack:
        progress = stack.enter_context(progress_bar("profile"))
        runner = rules = None
        if job is not None:
            from rlplan.executor.pass_runner import RayPassRunner
            from rlplan.profiles.sheets import sheet_of

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


def measure_joined(
    out: Path, address: str, wanted: ProfileRequest, *, folder: Path, quick: bool
) -> tuple[Profile, ...]:
    """Measure a Ray cluster into the profile folder `out`, resuming what is there."""
    from rlplan_cli.profiling.cluster import measure_cluster

    with progress_bar("profile") as progress:
        return measure_cluster(out, address, wanted, folder=folder, quick=quick, progress=progress)
