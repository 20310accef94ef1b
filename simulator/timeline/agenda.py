"""The works of one iteration of a plan: tasks, the transition before generation, transfers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlplan.dataflow import Task, parents_of, rounds_together
from rlplan.simulator.costs.syncs import transition_cost
from rlplan.simulator.costs.taskcost import TaskCost, data_bytes, times_of, transfer_cost
from rlplan.simulator.generation.generating import begun, finish_seconds, with_length_spread
from rlplan.simulator.generation.over_provisioning import (
    EarlyStop,
    cost_until_enough,
    enough_of,
    learnt,
)
from rlplan.simulator.placed import PlacedPlan, PlacedTask
from rlplan.simulator.stages import task_cost
from rlplan.simulator.stages.rule import with_backlog
from rlplan.simulator.timeline.engine import Work
from rlplan.simulator.timeline.pool_memory import TRANSITION, kv_bytes_left
from rlplan.simulator.workload import Floats, learnt_work


@dataclass(frozen=True, slots=True)
class Entry:
    """Hold one work of an iteration with its cost and the stage that its time belongs to."""

    work: Work
    stage: str
    cost: TaskCost


def agenda_of(placed: PlacedPlan) -> tuple[Entry, ...]:
    """Return the works of one iteration, costed in seconds, in the dataflow's order.

    The transition to the generate layout precedes the first generation. Data for another pool is transferred
    once to each pool that needs it; data for the same pool is passed by the call of the task, which the task's cost
    includes.
    """
    plan, tasks, learnt = placed.plan, placed.known_tasks, learnt_plan(placed)
    entries: dict[str, Entry] = {}
    for task in tasks:
        after: list[str] = []
        if task.kind == "generate":
            transition = entries.get(TRANSITION) or transition_before(task, placed)
            if transition:
                entries[TRANSITION] = transition
                after.append(TRANSITION)
        for parent in parents_of(task, tasks):
            if plan.tasks[parent.name].pool == plan.tasks[task.name].pool:
                after.append(parent.name)
                continue
            for key in (key for key in parent.outputs if key in task.inputs):
                move = transfer_of(key, parent, task, learnt)
                entries.setdefault(move.work.key, move)
                after.append(move.work.key)
        learning = placed if task.generates else learnt
        entries[task.name] = _task_entry(learning.tasks[task.name], tuple(after), placed)
    if not plan.flow.is_batch_ahead:
        return tuple(entries.values())
    works = batch_ahead((entry.work for entry in entries.values()), tasks)
    return tuple(
        replace(entry, work=work) for entry, work in zip(entries.values(), works, strict=True)
    )


def batch_ahead(works: Iterable[Work], tasks: Sequence[Task]) -> list[Work]:
    """Return the works of an iteration with their dependences on earlier iterations, where generation is a batch ahead.

    Batch i+1 is generated on its own pool while batch i is trained on. The weights of update i-1 are synced before the
    generation of batch i+1 begins, as soon as both pools are free, and before the training pool's next tasks; so samples
    are generated with weights one update old. Preparation and updates run one iteration at a time, as in a controller's
    loop.

    Args:
        tasks: The algorithm's tasks; works of other keys are transitions and transfers.
    """
    by_key = {task.name: task for task in tasks}
    trained = [task.name for task in tasks if task.kind == "train"]
    generating = {task.role for task in tasks if task.kind == "generate"}
    updates = tuple(
        (task.name, 2) for task in tasks if task.kind == "train" and task.role in generating
    )
    generated = tuple((task.name, 1) for task in tasks if task.kind == "generate")
    before = tuple((name, 1) for name in trained)
    found = []
    for work in works:
        task = by_key.get(work.key)
        if work.key == TRANSITION:
            found.append(replace(work, earlier=(*updates, *generated), ahead=2))
        elif task is not None and task.kind == "generate":
            found.append(replace(work, earlier=updates))
        elif task is not None:
            found.append(replace(work, earlier=before))
        else:
            found.append(work)
    return found


def learnt_plan(placed: PlacedPlan) -> PlacedPlan:
    """Return the plan with the workload that its iterations learn from, which may be less than what they begin.

    Where responses are handed on one by one, the simulation itself finds which are dropped.
    """
    plan = placed.plan
    if not plan.ends_generation_early:
        return placed
    job = replace(plan.job, workload=learnt(plan.job.workload, enough_learnt(placed)))
    return PlacedPlan(replace(plan, job=job), placed.facts)


def enough_learnt(placed: PlacedPlan) -> EarlyStop:
    """Return when as many responses of a plan have ended as it learns from."""
    return enough_of(placed.generate, max(0.0, kv_bytes_left(placed)))


def transition_before(task: Task, placed: PlacedPlan) -> Entry | None:
    """Return the transition before a generate task; None when the model's weights stay as they are.

    Between two pools it holds both, since the training ranks send while the generating ones receive.
    """
    transition = placed.transition_to(placed.tasks[task.name])
    if transition is None:
        return None
    cost = transition_cost(transition)
    if cost.total.seconds == 0:
        return None
    train, generate = transition.train.layout.pool, transition.generate.layout.pool
    work = Work(
        key=TRANSITION,
        name=TRANSITION,
        pool=generate,
        holds=tuple(dict.fromkeys((generate, train))),
        activity="transition",
    )
    return Entry(work, TRANSITION, cost)


def transfer_of(key: str, producer: Task, consumer: Task, placed: PlacedPlan) -> Entry:
    """Return the transfer of a data key to the consumer's pool.

    It has the way out of the producer's pool and the way into the consumer's to itself, so that
    transfers which share either go one after another; the pools themselves go on working.
    """
    source = placed.tasks[producer.name].layout.pool
    target = placed.tasks[consumer.name].layout.pool
    estimate = transfer_cost(
        data_bytes((key,), learnt_work(placed.plan.job.workload), placed.plan.job.top_tokens),
        placed.sites[source],
        placed.sites[target],
        placed.facts,
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


def _task_entry(task: PlacedTask, after: tuple[str, ...], placed: PlacedPlan) -> Entry:
    if task.task.kind == "generate":
        kv_bytes, early = max(0.0, kv_bytes_left(placed)), task.workload.drops_responses
        whole = begun(task) if early or rounds_together(task.job) > 1 else task
        cost = with_length_spread(task_cost(whole, kv_bytes), whole, kv_bytes, placed.mean_of)
        if early:  # once as many responses have ended as are learnt from
            cost = cost_until_enough(cost, task, kv_bytes)
    else:
        cost = task_cost(task)
    if task.task.stage_kind.calls_functions and task.job.rewards and task.job.rewards.streamed:
        ends, generations = response_end_seconds(placed), placed.generate.task.batches
        cost = with_backlog(cost, task, ends, generations)
    name, pool = task.task.name, task.layout.pool
    work = Work(key=name, name=name, pool=pool, holds=(pool,), after=after)
    return Entry(work, task.task.stage, cost)


def response_end_seconds(placed: PlacedPlan) -> Floats:
    """Return when each response of an iteration ends, in seconds from the start of its generation; shape (responses,)."""
    generate, kv_bytes = placed.generate, max(0.0, kv_bytes_left(placed))
    ends = finish_seconds(begun(generate), kv_bytes) * times_of(generate)
    if begun(generate) is generate:
        return ends
    fraction = enough_of(generate, kv_bytes).time_fraction
    return np.minimum(ends, fraction * float(ends.max()))
