"""Stages, one file each: how the tasks of a kind run on the ranks of their pool.

A stage's name is that of its kind in `rlplan/stages/`. `rlplan.executor.workers.worker` gives each of them the
pool's models, `rlplan.executor.workers.host_worker` the job and its prompts.
"""

from typing import Any, Protocol

from rlplan.dataflow import Task
from rlplan.executor.data.batches import Columns
from rlplan.executor.parallel.positions import RankPositions
from rlplan.executor.workers.calls import TaskCall
from rlplan.plan import Plan
from rlplan.plug_ins import PlugIns


class Stage(Protocol):
    """Run a task on a rank; keep what it needs between calls."""

    def __init__(self, pool: Any, task: Task) -> None:
        """Build it, on all ranks of the pool together."""

    def run(self, call: TaskCall, pieces: tuple[Columns, ...]) -> Any:
        """Return the task's outputs and a report (`rlplan.executor.workers.calls.run_task`)."""


class StageFile(Protocol):
    """Have what a stage's file has.

    Attributes:
        PROTOCOL: The transfer protocol that spreads rows over ranks and gathers outputs.
        Stage: What runs on a rank.
    """

    PROTOCOL: str
    Stage: type[Stage]

    def positions(self, plan: Plan, task: Task) -> RankPositions:
        """Return where the pool's ranks stand while the task runs."""


STAGES = PlugIns[StageFile](__name__, __path__, kind="stage", dashes=False)
