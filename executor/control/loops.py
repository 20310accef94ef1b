"""Controller loops: how an iteration's tasks follow each other, as pseudo-code would have it.

Which tasks there are, and who waits for whom, says the algorithm's file in `rlplan/algorithms/`. A
loop that makes its batch returns it, as it was trained on.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from rlplan.dataflow import Task
from rlplan.executor.control.prompt_batches import ROUND_STRIDE, Batch
from rlplan.executor.data.batches import Array, Piece, count_rows, shifted, whole_blocks
from rlplan.job import DynamicSampling, Job, Rewards
from rlplan.plan import Plan


class IterationRun(Protocol):
    """Carry out an iteration's tasks; every call returns at once, but for `fetch`."""

    iteration: int
    tasks: tuple[Task, ...]

    def prompts(self, number: int) -> Batch:
        """Return the batch of prompts of that number."""

    def send(self, tasks: tuple[Task, ...], batch: Batch) -> None:
        """Send tasks, each after those that it waits for and in the plan's order."""

    def fetch(self, batch: Batch, keys: tuple[str, ...]) -> Mapping[str, Array]:
        """Return one number for every row, by those of the keys that the batch has."""


def one_batch(run: IterationRun) -> Batch:
    """Generate, judge and learn from one batch: every algorithm but those that sample again."""
    batch = run.prompts(run.iteration)
    run.send(run.tasks, batch)
    return batch


def generated(run: IterationRun) -> Batch:
    """Generate a batch, with the weights that are there."""
    batch = run.prompts(run.iteration)
    run.send(tuple(task for task in run.tasks if task.generates), batch)
    return batch


def ended_first(run: IterationRun, hand_over: Callable[[Batch], Batch]) -> Batch:
    """Generate a batch until enough of it has ended, then judge and learn from that.

    Args:
        hand_over: Waits for that; returns what has ended first.
    """
    batch = hand_over(generated(run))
    run.send(left_to_do(run.tasks, judged=False), batch)
    return batch


def left_to_do(tasks: tuple[Task, ...], *, judged: bool) -> tuple[Task, ...]:
    """Return the tasks that a batch still wants once it is generated, or judged as well."""
    left = (task for task in tasks if not task.generates)
    return tuple(task for task in left if task.trains or not judged)


def beside_generation(tasks: tuple[Task, ...], plan: Plan) -> tuple[Task, ...]:
    """Return the tasks that share the generating pool and train nothing, such as a reward there.

    When generation ends they and the next one could both begin; the earlier iteration's are first.
    """
    pool = plan.tasks["actor.generate"].pool
    shared = (task for task in tasks if plan.tasks[task.name].pool == pool)
    return tuple(task for task in shared if not task.trains)


def one_step_off(
    run: IterationRun,
    batch: Batch,
    left: tuple[Task, ...],
    beside: tuple[Task, ...],
    generate_next: Callable[[], None],
) -> None:
    """Learn from a batch that was generated while the one before was learnt from.

    Args:
        left: What the batch still wants after that.
        beside: Of these what judges the batch where the next one is generated, and comes before that.
        generate_next: Sends the weights as they are before this iteration's updates, and what generates
            with them.
    """
    run.send(beside, batch)
    generate_next()
    run.send(tuple(task for task in left if task not in beside), batch)


def sampled_again(run: IterationRun, job: Job) -> Batch:
    """Generate and judge until there are enough groups of unequal rewards, then learn from them."""
    batch = enough_groups(run, job)
    run.send(tuple(task for task in run.tasks if task.trains), batch)
    return batch


def enough_groups(run: IterationRun, job: Job, first: Batch | None = None) -> Batch:
    """Generate and judge until there are enough groups of unequal rewards; return a batch of them.

    Yu et al. 2025, DAPO, arXiv:2503.14476, algorithm 1 and section 3.2. Should the rounds not
    suffice, groups of equal rewards fill the batch up.

    Args:
        first: Batch of the first round, if that is generated already.
    """
    sampling, rewards = job.dynamic_sampling or DynamicSampling(), job.rewards or Rewards()
    samples = job.workload.samples_per_prompt
    sampling_tasks = tuple(task for task in run.tasks if not task.trains)
    judging_tasks = tuple(task for task in sampling_tasks if not task.generates)
    batches, unequal = [], list[bool]()
    for round_number in range(sampling.max_rounds):
        if first is not None and not round_number:
            batch, tasks = first, judging_tasks
        else:
            batch = run.prompts(run.iteration + round_number * ROUND_STRIDE)
            tasks = sampling_tasks
        run.send(tasks, batch)
        batches.append(batch)
        unequal += groups_of_unequal_rewards(
            run.fetch(batch, ("scores", "rule_scores")), rewards, samples
        )
        if sum(unequal) * samples >= count_rows(batch.rows):
            break
    return chosen_groups(batches, unequal, samples)


def groups_of_unequal_rewards(
    scores: Mapping[str, Array], rewards: Rewards, samples: int
) -> list[bool]:
    """Return of each group whether its samples' rewards differ.

    Args:
        scores: By data key, one number for every sample.
        samples: Size of a group; its samples are consecutive.
    """
    weights = {"scores": rewards.model_weight, "rule_scores": rewards.function_weight}
    total: Any = sum(weights[key] * numbers.astype(np.float64) for key, numbers in scores.items())
    groups = total.reshape(-1, samples)
    unequal: list[bool] = (groups.max(axis=1) > groups.min(axis=1)).tolist()
    return unequal


def chosen_groups(batches: list[Batch], unequal: list[bool], samples: int) -> Batch:
    """Return a batch as large as each of the given ones, of the first groups that tell apart.

    Rows of the second batch are counted on from the first one's, and so on.
    """
    size = count_rows(batches[0].rows)
    groups = size // samples
    first_ones = sorted(range(len(unequal)), key=lambda group: not unequal[group])
    chosen = sorted(first_ones[:groups])
    pieces: dict[str, tuple[Piece, ...]] = {}
    for place, batch in enumerate(batches):
        for key, held in batch.pieces.items():
            moved = tuple(Piece(shifted(p.rows, place * size), p.reference) for p in held)
            pieces[key] = pieces.get(key, ()) + moved
    return Batch(number=batches[0].number, rows=whole_blocks(tuple(chosen), samples), pieces=pieces)
