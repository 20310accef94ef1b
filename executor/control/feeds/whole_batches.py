"""Whole batches: an iteration's tasks are sent in one go, and generation waits for training or is one batch ahead.

Which tasks there are, and who waits for whom, says the algorithm's file in `rlplan/algorithms/`. How they follow each
other say the loops, as pseudo-code would have it; a loop that makes its batch returns it, as it was trained on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import ray

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task
from rlplan.executor.control.dispatcher import Batch, Dispatcher, Pieces, PromptPieces
from rlplan.executor.control.feeds.feed import EndedIteration, SentIteration
from rlplan.executor.control.pending_calls import (
    PendingCall,
    measured_spans,
    metrics_by_task,
    reported_by,
)
from rlplan.executor.data.batches import (
    ROUND_STRIDE,
    Array,
    Columns,
    Piece,
    Rows,
    assemble,
    common_rows,
    count_rows,
    shifted,
    whole_blocks,
)
from rlplan.executor.data.workload import job_of_batches
from rlplan.executor.rollout.completions import Completions
from rlplan.executor.workers.calls import Segment, SegmentCall, TaskCall
from rlplan.executor.workers.pools import fetched
from rlplan.job import DynamicSampling, Job, Rewards
from rlplan.plan import Plan

# Steps of a segment of several replicas: none knows what the others have ended, and all go on until the segment has.
# One replica alone sees when there is enough.
SEGMENT_STEPS = 16


class WholeBatches:
    """Generate and learn from a batch an iteration, whole.

    Args:
        prompts: Returns the prompts of a batch as columns, and the texts that are mixed in.
    """

    def __init__(
        self, plan: Plan, dispatcher: Dispatcher, prompts: Callable[[int], Columns]
    ) -> None:
        self._plan, self._dispatcher = plan, dispatcher
        self._begun = job_of_batches(plan).workload
        self._prompts = PromptPieces(prompts, self._begun.sequences)
        self._resamples = load_algorithm(plan.job.algorithm).resamples
        self._ahead: tuple[_IterationRun, Batch] | None = None
        self._age = 0

    def begin(self, iteration: int, *, is_last: bool) -> tuple[tuple[PendingCall, ...], Pieces]:
        """Send all calls of an iteration, and where generation is a batch ahead those that generate the next one."""
        if self._plan.flow.is_batch_ahead:
            # The first batch is fresh, but where a checkpoint has the weights of the update before for it.
            age = int(self._ahead is not None or self._dispatcher.generator_is_ready)
            run, batch = self._ahead or self._completed(*self._generated(iteration))
            assert run.iteration == iteration
            self._age = age
            self._learn_and_generate(run, batch, None if is_last else iteration + 1)
        else:
            run = self._run(iteration)
            batch = self._one_after_another(run)
        return tuple(run.calls), batch.pieces

    def end(self, running: SentIteration, origin_seconds: float) -> EndedIteration:
        """Wait for an iteration's calls."""
        self._prompts.make_next()
        reported = reported_by(running.calls)
        return EndedIteration(
            spans=measured_spans(reported, running.iteration, origin_seconds),
            metrics=metrics_by_task(running.calls, reported),
            ages=(self._age,) * self._plan.job.workload.sequences,
            dropped=self._begun.sequences - self._plan.job.workload.sequences,
        )

    def bring_newest(self, done: int) -> None:
        """Bring the weights as they are to what generates, once what is generated ahead is there.

        What the next iteration generates with comes anew, and is the same. Weights for its batch that a checkpoint had
        generate that batch first.
        """
        if self._ahead is None and self._dispatcher.generator_is_ready:
            self._ahead = self._completed(*self._generated(done))
        if self._ahead is not None:
            reported_by(self._ahead[0].calls)
        self._dispatcher.send_transition()

    def position(self, iteration: int) -> tuple[int, tuple[int, ...]]:
        """Return the next prompt of the stream: of those before it none is left."""
        return iteration * self._begun.prompts, ()

    def go_on_from(self, iteration: int, next_prompt: int, left: Sequence[int]) -> None:
        """Begin where a run was; whole batches need no more than the iteration's number."""

    def stop(self) -> None:
        """End what the feed itself has started: nothing."""

    def _run(self, iteration: int) -> "_IterationRun":
        return _IterationRun(self._plan, self._dispatcher, self._prompts, iteration)

    def _one_after_another(self, run: "_IterationRun") -> Batch:
        """Send an iteration that begins when the one before has ended."""
        if self._resamples:
            return sampled_again(run, self._plan.job)
        if self._plan.ends_generation_early:
            return ended_first(run, run.hand_over)
        return one_batch(run)

    def _learn_and_generate(
        self, run: "_IterationRun", batch: Batch, following: int | None
    ) -> None:
        """Send what is left to do on a batch, and what makes the next one beside it."""
        left = left_to_do(self._dispatcher.order, judged=self._resamples)
        beside = beside_generation(left, self._plan)
        learn_and_generate_next(run, batch, left, beside, lambda: self._generate_ahead(following))
        if self._ahead is not None:
            self._ahead = self._completed(*self._ahead)

    def _completed(self, run: "_IterationRun", batch: Batch) -> tuple["_IterationRun", Batch]:
        """Return an iteration with the batch that it will learn from.

        Where groups are sampled again this waits for their rewards, while the update that was sent
        before goes on; all rounds are generated with the same weights. Where more is begun than is learnt from it
        waits until enough has ended.
        """
        if self._plan.ends_generation_early:
            return run, run.hand_over(batch)
        if not self._resamples:
            return run, batch
        return run, enough_groups(run, self._plan.job, batch)

    def _generated(self, iteration: int) -> tuple["_IterationRun", Batch]:
        run = self._run(iteration)
        return run, generated(run)

    def _generate_ahead(self, iteration: int | None) -> None:
        """Send the weights as they are, and what generates with them unless nothing follows."""
        if iteration is None:
            self._dispatcher.send_transition()  # for a checkpoint with which a longer run may go on
        self._ahead = None if iteration is None else self._generated(iteration)


class _IterationRun:
    """Carry out one iteration of a feed."""

    def __init__(
        self, plan: Plan, dispatcher: Dispatcher, prompts: PromptPieces, iteration: int
    ) -> None:
        self._plan, self._dispatcher, self._prompts = plan, dispatcher, prompts
        self.iteration, self.tasks, self.calls = iteration, dispatcher.order, list[PendingCall]()
        self._in_segments: BatchInSegments | None = None
        # A pool that also trains gives the generate layout up after each task that generates.
        train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
        self._reshards_every_time = train.pool == generate.pool

    def prompts(self, number: int) -> Batch:
        return self._prompts.batch(number)

    def send(self, tasks: tuple[Task, ...], batch: Batch) -> None:
        """Send tasks on a batch, and what brings the weights to those that generate."""
        for task in self.tasks:
            if task not in tasks:
                continue
            if task.generates and (batch.is_first or self._reshards_every_time):
                self.calls += self._dispatcher.bring_weights()
            if task.generates and self._plan.ends_generation_early:
                self._in_segments = BatchInSegments(self._plan, self._dispatcher, task, batch)
                continue
            self.calls.append(self._dispatcher.send(task, batch))

    def hand_over(self, begun: Batch) -> Batch:
        """Wait until enough of a batch has ended, and let replicas hand that over; return what is learnt from."""
        segments, self._in_segments = self._in_segments, None
        assert segments is not None, "its segments have begun"
        batch = replace(begun, rows=segments.chosen())
        shares, calls = segments.hand_over(batch.rows)
        self.calls.append(self._dispatcher.send_calls(segments.task, batch, shares, calls))
        return batch

    def fetch(self, batch: Batch, keys: tuple[str, ...]) -> Mapping[str, Array]:
        found = {}
        for key in keys:
            pieces = batch.pieces.get(key, ())
            if pieces:
                columns = ray.get([piece.reference for piece in pieces])
                held = [(p.rows, each) for p, each in zip(pieces, columns, strict=True)]
                found[key] = assemble(batch.rows, held)[key]
        return found


class BatchInSegments:
    """Generate a batch on the replicas of a pool until enough of it has ended.

    Args:
        task: That generates.
    """

    def __init__(self, plan: Plan, dispatcher: Dispatcher, task: Task, batch: Batch) -> None:
        self.task, self._shares = task, dispatcher.shares(task, batch)
        self._group, self._batch = dispatcher.group(task), batch
        self._replicas = dispatcher.positions(task).first_groups()
        self._completions = Completions(
            plan.job.workload, groups=load_algorithm(plan.job.algorithm).groups
        )
        prompts = batch.pieces["prompts"][0].reference
        first = {rank: (self._segment(rows), prompts) for rank, rows in self._shares.items()}
        self._sent = self._group.send("play_segment", first)

    def chosen(self) -> Rows:
        """Wait until enough has ended; return the rows that are learnt from, in their order.

        Raises:
            RlplanError: A worker failed or died.
        """
        number = 0
        while True:
            played: Mapping[int, Segment] = fetched(self._sent)
            for ranks in self._replicas:
                if ranks[0] in played:
                    self._completions.note(number, played[ranks[0]].ended)
            if self._completions.are_enough:
                return self._completions.chosen
            number += 1
            following = {rank: (self._segment(None),) for rank in played if played[rank].running}
            self._sent = self._group.send("play_segment", following)

    def hand_over(self, rows: Rows) -> tuple[dict[int, Rows], dict[int, tuple[TaskCall]]]:
        """Return by rank what it hands over of rows, and the call that asks for it; it forgets the rest."""
        shares = {rank: common_rows(rows, own) for rank, own in self._shares.items()}
        return shares, {rank: (self._handing_over(share),) for rank, share in shares.items()}

    def _handing_over(self, rows: Rows) -> TaskCall:
        return TaskCall(
            task=self.task.name,
            outputs=self.task.outputs,
            iteration=self._batch.number,
            rows=rows,
            inputs={},
        )

    def _segment(self, begin: Rows | None) -> SegmentCall:
        """Return the next segment: a replica alone ends it when enough has ended."""
        is_alone = len(self._replicas) == 1
        return SegmentCall(
            task=self.task.name,
            batch=self._batch.number,
            begin=begin,
            steps=None if is_alone else SEGMENT_STEPS,
            completions=self._completions if is_alone else None,
        )


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


def learn_and_generate_next(
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
