"""What happens in one iteration of a plan: tasks, the transition before generation, transfers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from profiles.facts import Facts
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, parents_of, tasks_of
from rlplan.plan import Plan
from simulator.costs import (
    TaskCost,
    task_cost,
    transfer_cost,
    transition_cost,
    with_length_spread,
)
from simulator.costs.traffic import data_bytes
from simulator.memory.pool_memory import kv_bytes_left
from simulator.site import Site
from simulator.timeline.engine import Work
from simulator.timeline.steady import one_step_off

TRANSITION = "transition"


@dataclass(frozen=True, slots=True)
class Entry:
    """Hold one work of an iteration with its cost and the stage that its time belongs to."""

    work: Work
    stage: str
    cost: TaskCost


def agenda_of(plan: Plan, facts: Facts, sites: Mapping[str, Site]) -> tuple[Entry, ...]:
    """Return the works of one iteration, costed in seconds, in the dataflow's order.

    The weights go over to the generate layout before the first generation. Data that leaves its
    pool is transferred once to each pool that wants it; data that stays is handed over by the call
    of the task, whose cost includes that.
    """
    tasks = tasks_of(load_algorithm(plan.job.algorithm), plan.job)
    entries: dict[str, Entry] = {}
    for task in tasks:
        after: list[str] = []
        if task.kind == "generate":
            transition = entries.get(TRANSITION) or transition_of(task, tasks, plan, facts, sites)
            if transition:
                entries[TRANSITION] = transition
                after.append(TRANSITION)
        for parent in parents_of(task, tasks):
            if plan.tasks[parent.name].pool == plan.tasks[task.name].pool:
                after.append(parent.name)
                continue
            for key in (key for key in parent.outputs if key in task.inputs):
                move = transfer_of(key, parent, task, plan, facts, sites)
                entries.setdefault(move.work.key, move)
                after.append(move.work.key)
        entries[task.name] = _task_entry(task, tuple(after), plan, facts, sites)
    if plan.mode == "sync":
        return tuple(entries.values())
    works = one_step_off((entry.work for entry in entries.values()), tasks, TRANSITION)
    return tuple(
        replace(entry, work=work) for entry, work in zip(entries.values(), works, strict=True)
    )


def transition_of(
    task: Task,
    tasks: tuple[Task, ...],
    plan: Plan,
    facts: Facts,
    sites: Mapping[str, Site],
) -> Entry | None:
    """Return the transition before a generate task; None when the model's weights stay as they are.

    Between two pools it holds both, since the training ranks send while the generating ones receive.
    """
    updates = [other for other in tasks if other.kind == "train" and other.role == task.role]
    if not updates:
        return None
    train, generate = plan.tasks[updates[0].name], plan.tasks[task.name]
    cost = transition_cost(
        plan.transition,
        plan.job.architecture(task.role),
        train,
        generate,
        sites[train.pool],
        sites[generate.pool],
        same_pool=train.pool == generate.pool,
        job=plan.job,
        facts=facts,
    )
    if cost.total.seconds == 0:
        return None
    work = Work(
        key=TRANSITION,
        name=TRANSITION,
        pool=generate.pool,
        holds=tuple(dict.fromkeys((generate.pool, train.pool))),
        activity="transition",
    )
    return Entry(work, TRANSITION, cost)


def transfer_of(
    key: str,
    producer: Task,
    consumer: Task,
    plan: Plan,
    facts: Facts,
    sites: Mapping[str, Site],
) -> Entry:
    """Return the transfer of a data key to the consumer's pool.

    It has the way out of the producer's pool and the way into the consumer's to itself, so that
    transfers which share either go one after another; the pools themselves go on working.
    """
    source, target = plan.tasks[producer.name].pool, plan.tasks[consumer.name].pool
    estimate = transfer_cost(
        data_bytes((key,), plan.job.workload),
        sites[source],
        sites[target],
        same_pool=False,
        facts=facts,
    )
    work = Work(
        key=f"transfer:{key} from {producer.name} to {target}",
        name=f"transfer:{key}",
        pool=target,
        holds=(f"out of {source}", f"into {target}"),
        after=(producer.name,),
        activity="transfer",
    )
    return Entry(work, consumer.stage, TaskCost((("transfer", estimate),)))


def _task_entry(
    task: Task, after: tuple[str, ...], plan: Plan, facts: Facts, sites: Mapping[str, Site]
) -> Entry:
    layout = plan.tasks[task.name]
    kv_bytes = max(0.0, kv_bytes_left(plan, facts)) if task.kind == "generate" else None
    cost = task_cost(task, layout, sites[layout.pool], plan.job, facts, kv_bytes=kv_bytes)
    if task.kind == "generate":
        site = sites[layout.pool]
        cost = with_length_spread(cost, task, layout, site, plan.job, facts, kv_bytes)
    work = Work(key=task.name, name=task.name, pool=layout.pool, holds=(layout.pool,), after=after)
    return Entry(work, task.stage, cost)
