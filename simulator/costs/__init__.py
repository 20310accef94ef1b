"""What tasks, transitions and transfers cost, in seconds by cause.

One list of operators per layer (`operators.py`) is priced by the facts of a device (`pricing.py`);
infer, train and generate tasks are made of such passes. Where a profile measured whole passes of a
model, these are counted instead (`measured.py`).
"""

from dataclasses import replace

from profiles.facts import Facts
from rlplan.dataflow import Task
from rlplan.job import Job
from rlplan.plan import TaskPlan
from simulator.costs.forward import infer_cost
from simulator.costs.measured import is_plain, measured_infer, measured_train
from simulator.costs.rule import rule_cost
from simulator.costs.taskcost import TaskCost, times, with_spread
from simulator.costs.traffic import data_bytes, transfer_cost
from simulator.costs.training import train_cost
from simulator.costs.transition import transition_cost
from simulator.generation.generating import generate_cost, with_length_spread
from simulator.site import Site

__all__ = [
    "TaskCost",
    "data_bytes",
    "task_cost",
    "transfer_cost",
    "transition_cost",
    "with_length_spread",
]


def task_cost(
    task: Task,
    layout: TaskPlan,
    site: Site,
    job: Job,
    facts: Facts,
    *,
    kv_bytes: float | None = None,
) -> TaskCost:
    """Return what one task costs on its pool, in seconds by cause.

    Batches of a task that generates or infers pass through it one after another; those of an update
    are one larger batch.

    Args:
        job: A resolved job.
        kv_bytes: Bytes free for the KV cache on each GPU (generate); None for all that it can use.

    Raises:
        MissingFactError: Neither profile nor device sheet can price something.
    """
    if task.batches == 1:
        return _batch_cost(task, layout, site, job, facts, kv_bytes)
    if task.kind != "train":
        return times(_batch_cost(task, layout, site, job, facts, kv_bytes), task.batches)
    work = replace(job.workload, prompts=round(job.workload.prompts * task.batches))
    return _batch_cost(task, layout, site, replace(job, workload=work), facts, kv_bytes)


def _batch_cost(
    task: Task, layout: TaskPlan, site: Site, job: Job, facts: Facts, kv_bytes: float | None
) -> TaskCost:
    """Return what a task costs on one global batch."""
    if task.kind == "rule":
        return rule_cost(task, site, job, facts)
    spread = facts.engine(layout.engine).forecast_spread
    if task.kind == "generate":
        return with_spread(generate_cost(task, layout, site, job, facts, kv_bytes), spread)
    measured = None
    if is_plain(layout):
        look_up = measured_infer if task.kind == "infer" else measured_train
        measured = look_up(task, layout, site, job, facts)
    if measured is not None:
        return measured
    if task.kind == "infer":
        return with_spread(infer_cost(task, layout, site, job, facts), spread)
    return with_spread(train_cost(task, layout, site, job, facts), spread)
