"""SRL: environments on CPU cores, policy workers that answer them, trainers apart, never waiting for each other.

Sources: Mei et al. 2024, SRL, arXiv:2306.16688, sections 3 and 4; its repository, openpsi-project/srl at 636c5da:
`legacy/experiments/hns_reproduce.py` has a buffer of 16 batches (`max_size`), from which trainers take while actors go
on, and both ways to infer (`inline`); trainers are data parallel (`DistributedDataParallel`), each with a whole model,
and so are policy workers. Weights go to policy workers after every step, and what is under way goes on with them. Not
played: that a batch may be learnt from four times (`reuses`), which is the job's to say.
"""

from dataclasses import replace
from math import inf

from rlplan.dataflow import Task
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import ENDLESS_MODE, TaskDraft
from rlplan.planner.requests.pinned import Pinned
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.planner.systems.system_plans import best_searched, job_tasks
from rlplan.profiles.facts import Facts
from rlplan.results.accuracy import SystemForecast
from rlplan.workload import Inference

ABOUT = (
    "environments, policy workers and trainers apart and asynchronous, a whole model on every GPU; the policy answers "
    "in batches or beside each environment, whichever is faster"
)
BUFFERED_BATCHES = 16
INFERENCES: tuple[Inference, ...] = ("remote", "inline")


def best_plan(job: Job, facts: Facts) -> SystemForecast:
    """Return the better of its best plans with inference remote and inline, or why none fits."""
    if not job.workload.environments:
        reason = "its workers step environments, and workload.environments has none"
        return SystemForecast(name="srl", about=ABOUT, reason=reason)
    limit = job.specs.staleness
    staleness = BUFFERED_BATCHES if limit is None else min(limit, BUFFERED_BATCHES)
    if staleness == 0:
        reason = (
            "its trainers take what is there, however old, and specs.staleness is 0: no plan fits"
        )
        return SystemForecast(name="srl", about=ABOUT, reason=reason)
    asked = AskedSchedules(
        modes=(ENDLESS_MODE,), staleness=staleness, sync_every=1, in_flight="recompute"
    )
    pinned = Pinned(
        asked=asked, tasks=FrozenDict({each.name: _whole(each) for each in job_tasks(job)})
    )
    found = [
        best_searched("srl", ABOUT, _inferring(job, inference), facts, pinned, staleness=staleness)
        for inference in INFERENCES
    ]
    fitting = [each for each in found if each.plan is not None]
    if not fitting:
        return found[0]
    best = min(fitting, key=lambda each: each.seconds or inf)
    assert best.plan is not None
    return replace(best, plan=replace(best.plan, made_by="srl"))


def _whole(task: Task) -> TaskDraft:
    """Return the layout of a task whose ranks each hold a whole model."""
    draft = TaskDraft(tp=1, pp=1, cp=1)
    return replace(draft, zero=0) if task.kind == "train" else draft


def _inferring(job: Job, inference: Inference) -> Job:
    """Return a job whose policy answers all environments in one way."""
    environments = tuple(replace(each, inference=inference) for each in job.workload.environments)
    return replace(job, workload=replace(job.workload, environments=environments))
