"""Generation that begins more than is learnt from: it goes on in segments, until enough of a batch has ended.

Replicas take the same steps in a segment, and a segment is looked at when all of them have ended it. So what
ends first is told by steps and never by clocks, and the same seed gives the same batches.
"""

from collections.abc import Mapping

from executor.control.prompt_batches import Batch
from executor.data.batches import Rows, common_rows
from executor.parallel.positions import RankPositions
from executor.rollout.completions import Completions
from executor.workers.calls import Segment, SegmentCall, TaskCall
from executor.workers.pools import WorkerGroup, fetched
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task
from rlplan.plan import Plan

# Steps of a segment of several replicas: none knows what the others have ended, and all go on until the segment has.
# One replica alone sees when there is enough.
SEGMENT_STEPS = 16


class BatchInSegments:
    """Generate a batch on the replicas of a pool until enough of it has ended.

    Args:
        task: That generates.
        shares: By rank, the rows that it begins.
    """

    def __init__(
        self,
        plan: Plan,
        group: WorkerGroup,
        task: Task,
        batch: Batch,
        positions: RankPositions,
        shares: Mapping[int, Rows],
    ) -> None:
        self.task, self._shares = task, shares
        self._group, self._batch = group, batch
        self._replicas = positions.first_groups()
        self._completions = Completions(
            plan.job.workload, groups=load_algorithm(plan.job.algorithm).groups
        )
        prompts = batch.pieces["prompts"][0].reference
        first = {rank: (self._segment(rows), prompts) for rank, rows in shares.items()}
        self._sent = group.send("play_segment", first)

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
