"""How tasks take samples from the queue: in fixed shares of a batch, or as they come.

Fixed shares make a run repeat itself to the last bit, whatever ends when. In mode streaming what is inferred
and learnt from is shared out like that where nothing is dropped, since the rows of a pass round each other's sums; a rule judges
row by row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, parts_of_updates
from rlplan.executor.queue.ledger import Ledger
from rlplan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePath:
    """Say which tasks stand where between generation and training.

    Attributes:
        ahead: Tasks that prepare samples as they come, through the queue.
        at_start: Tasks that prepare a whole batch when its iteration begins, for they need its weights.
        trains: Tasks that learn from it.
        updates: Parts of a batch that are learnt from one after another as each is there.
    """

    ahead: tuple[Task, ...]
    at_start: tuple[Task, ...]
    trains: tuple[Task, ...]
    updates: int


def sample_path(plan: Plan, tasks: Sequence[Task]) -> SamplePath:
    """Return the path of a plan's samples from generation to training."""
    trains = tuple(task for task in tasks if task.trains)
    prepares = tuple(task for task in tasks if not (task.trains or task.generates))
    trained = {task.role for task in trains}
    own = tuple(task for task in prepares if task.role in trained and task.has_model)
    updates = parts_of_updates(load_algorithm(plan.job.algorithm), plan.job)
    if not plan.flow.is_endless:
        return SamplePath(ahead=prepares, at_start=(), trains=trains, updates=updates)
    ahead = tuple(task for task in prepares if task not in own)
    return SamplePath(ahead=ahead, at_start=own, trains=trains, updates=updates)


def share_rows(plan: Plan, task: Task) -> int:
    """Return the rows of a fixed share of a task."""
    return plan.tasks[task.name].share_rows(plan.job.workload.samples_per_prompt)


def comes_in_fixed_shares(plan: Plan, task: Task) -> bool:
    """Tell whether it matters with which others a sample is taken.

    Ranks that gather weights or exchange experts in every pass need a share each.
    """
    meets = plan.tasks[task.name].meets_in_passes
    return task.has_model and (plan.learns_in_order or meets)


def fixed_shares(
    ledger: Ledger, task: str, first: int, count: int, rows: int
) -> Iterator[list[int]]:
    """Yield what is left of the fixed shares of a batch all of whose samples are ready.

    Args:
        first: Sample with which the batch begins.
        count: Samples of the batch.
        rows: Of a share; the last one may have fewer.
    """
    for start in range(first, first + count, rows):
        share = range(start, min(start + rows, first + count))
        left = [sample for sample in share if ledger.wants(task, sample)]
        if left and all(ledger.is_ready(task, sample) for sample in left):
            yield left
