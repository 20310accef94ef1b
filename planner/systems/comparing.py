"""Our plan of a job beside what systems of the field make of it, all forecast by one simulator.

A system is a way to plan, found in `planner/systems/baselines/`, or a framework that a job can name: the
best plan of the same job with the framework's own step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rlplan.errors import UnknownNameError, UserError
from rlplan.job import USUAL_WEIGHT_SYNC, Engines, Job
from rlplan.plan import BY_SAMPLE_MODE, ENDLESS_MODE
from rlplan.planner.objectives import load_objective
from rlplan.planner.requests.pinned import Pinned
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.planner.search import check_searched
from rlplan.planner.systems.baselines import baseline_names, load_baseline
from rlplan.planner.systems.system_plans import best_searched
from rlplan.profiles.facts import Facts
from rlplan.profiles.jobs.resolve import resolve_job
from rlplan.profiles.jobs.sampling import sampling_left_to
from rlplan.profiles.sheets import canonical_name, left_to_framework, load_framework, sheet_names
from rlplan.results.accuracy import SystemForecast, SystemsComparison
from rlplan.units import show_seconds

OURS = "rlplan"
ABOUT = "the best plan over all placements, allocations and layouts, found by `rlplan search`"

Progress = Callable[[int, int, str], None]


def compare_systems(
    job: Job,
    facts: Facts,
    names: Sequence[str] | None = None,
    *,
    progress: Progress | None = None,
    file: str = "job",
) -> SystemsComparison:
    """Return the best plan of each system for a resolved job, and ours.

    Args:
        names: Systems and frameworks in the order wanted; None is all systems.
        progress: Called with (done, total, system) before each.
        file: What to call the job in messages.

    Raises:
        UnknownNameError: There is no system or framework of a name.
        FileError: No search takes the job (`check_searched`).
    """
    check_searched(job, file)
    wanted = list(dict.fromkeys(baseline_names() if names is None else map(known_system, names)))
    found: list[SystemForecast] = []
    for done, name in enumerate(wanted):
        if progress:
            progress(done, len(wanted) + 1, name)
        if name in baseline_names():
            found.append(load_baseline(name).best_plan(job, facts))
        else:
            found.append(_under_framework(job, facts, name))
    if progress:
        progress(len(wanted), len(wanted) + 1, OURS)
    ours, note = _ours(job, facts, found)
    return SystemsComparison(job=job.name, ours=ours, systems=tuple(found), note=note)


def _ours(job: Job, facts: Facts, systems: Sequence[SystemForecast]) -> tuple[SystemForecast, str]:
    """Return our best plan, and what it has otherwise than the job says; empty where it has nothing.

    A system brings engines and weight syncs of its own, which may be faster than those of the job's framework. What is
    compared are plans: where one is faster than ours, ours is searched with the same engines too, weights synced as is best.
    """
    ours, note = best_searched(OURS, ABOUT, job, facts), ""
    if load_objective(job.objective).limit != "iteration_seconds":
        return ours, note  # a system that is faster may be dearer
    own, tried = ours.seconds, set[Engines]()
    for system in sorted(systems, key=lambda each: each.seconds or math.inf):
        plan = system.plan
        if plan is None or system.seconds is None or not _same_work(plan.job, job):
            continue
        if ours.seconds is not None and ours.seconds <= system.seconds:
            break
        trains, generates = (plan.tasks[f"actor.{each}"].engine for each in ("update", "generate"))
        engines = replace(job.engines, train=trains, generate=generates)
        if engines in tried:
            continue
        tried.add(engines)
        try:
            changed = resolve_job(replace(job, engines=engines), Path())
            changed = replace(changed, weight_sync=USUAL_WEIGHT_SYNC)
            other = best_searched(OURS, ABOUT, changed, facts)
        except UserError:  # the job asks for what these engines do not have
            continue
        if other.seconds is not None and other.seconds < (ours.seconds or math.inf):
            ours = other
            takes = "none fits" if own is None else f"it takes {show_seconds(own)}"
            note = (
                f"It trains with {engines.train} and generates with {engines.generate}, as {system.name} does; with the job's own "
                f"{job.engines.train} and {job.engines.generate}, and weights synced as its framework does it, {takes}"
            )
    return ours, note


def _same_work(one: Job, other: Job) -> bool:
    """Tell whether two jobs take the same steps of the same framework: then their plans compare."""
    return one.framework == other.framework and one.workload == other.workload


def known_system(name: str) -> str:
    """Return the name of a system or of a framework; other names of frameworks are understood.

    Raises:
        UnknownNameError: There is none of that name.
    """
    frameworks = sheet_names("frameworks")
    known = name if name in baseline_names() else canonical_name("frameworks", name)
    if known not in (*baseline_names(), *frameworks):
        raise UnknownNameError("system", name, (*baseline_names(), *frameworks))
    return known


def _under(framework: str, job: Job) -> Job:
    """Return a job as if it had named a framework, whose own choices it takes."""
    rewards = job.rewards and replace(job.rewards, streamed=None)
    changed = replace(
        job,
        framework=framework,
        cluster=left_to_framework(job),
        engines=Engines(),
        old_log_prob=None,
        weight_sync=USUAL_WEIGHT_SYNC,
        rewards=rewards,
        dynamic_sampling=sampling_left_to(load_framework(framework), job),
    )
    return resolve_job(changed, Path())


def _under_framework(job: Job, facts: Facts, name: str) -> SystemForecast:
    """Return the best plan of a framework; one that overlaps is run as its authors run it, within the job's limits."""
    sheet, changed = load_framework(name), _under(name, job)
    if sheet.staleness is None:
        return best_searched(name, sheet.title, changed, facts)
    limit = job.specs.staleness
    most = sheet.staleness if limit is None else min(limit, sheet.staleness)
    asked = AskedSchedules(modes=(BY_SAMPLE_MODE,))
    if most:
        asked = AskedSchedules(modes=(ENDLESS_MODE,), staleness=most, in_flight=sheet.in_flight)
    return best_searched(name, sheet.title, changed, facts, Pinned(asked=asked), staleness=most)
