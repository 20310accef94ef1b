"""What the controller sends with a call, what a rank reports beside its outputs, and the clock of these reports."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from rlplan.dataflow import Task
from rlplan.executor.data.batches import Columns, Rows, joined_columns
from rlplan.executor.data.finite import check_columns
from rlplan.executor.rollout.completions import Completions
from rlplan.job import Job
from rlplan.plan import Plan

_ahead = {"seconds": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCall:
    """Ask a rank to run a task on its rows.

    Attributes:
        task: Its name; all else about it is there since the rank was prepared.
        outputs: Data keys that it makes.
        iteration: Number of the batch of prompts; sampling again takes other prompts than iterations do.
        rows: The rank's rows of the global batch.
        inputs: By data key, the rows of the pieces that overlap them. The pieces' columns follow the
            call as arguments of their own, in this order: Ray hands a call over when its arguments
            are there, without a message per reference.
        state: What the algorithm carries from iteration to iteration, by name.
        updates: Optimizer steps that the rows are for, in one pass over them; None: those of the job.
    """

    task: str
    outputs: tuple[str, ...]
    iteration: int
    rows: Rows
    inputs: Mapping[str, Sequence[Rows]]
    state: Mapping[str, float] = field(default_factory=dict)
    updates: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollCall:
    """Ask a replica to continue generating its responses.

    Attributes:
        task: Name of the task that generates.
        outputs: Data keys that it makes.
        begin: Responses to start: numbers of batches of prompts, and rows of each. The prompts of these batches
            follow the call as arguments.
        steps: Tokens that are sampled of each response between two checks for ended ones.
        looks: Limit on these checks.
        ends: The call returns once so many responses have ended; they are handed over together.
        version: Of the weights, in updates.
        has_new_weights: Whether they came after the call before.
        withdraw: Responses, by batch and row, that are not wanted any more; other replicas' among them.
    """

    task: str
    outputs: tuple[str, ...]
    begin: Sequence[tuple[int, Rows]]
    steps: int
    looks: int
    ends: int
    version: int
    has_new_weights: bool
    withdraw: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCall:
    """Ask a replica to continue a batch of which only a part will be used; it keeps ended responses until told which.

    Attributes:
        task: Name of the task that generates.
        batch: Number of the batch of prompts.
        begin: In the batch's first segment, the replica's rows, whose prompts follow the call as an argument; else None.
        steps: Length of the segment; a step samples a token of every running response. None is no limit.
        completions: The responses of the batch that have ended before the segment, if the replica has the whole batch:
            the segment ends once enough have ended. None if other replicas have a part of the batch.
    """

    task: str
    batch: int
    begin: Rows | None
    steps: int | None
    completions: Completions | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCall:
    """Ask a replica for its responses to held-out prompts, whose columns follow the call.

    Attributes:
        task: Name of the task that generates.
        rows: The replica's rows of them.
    """

    task: str
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCall:
    """Ask for the scores of responses to held-out prompts.

    Attributes:
        task: Name of the task that calls the job's functions.
        responses: Of each its prompt's number, and its text.
    """

    task: str
    responses: Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Hold the rows that ended in a segment, each with the step at which it did, and the number that still run."""

    ended: tuple[tuple[int, int], ...]
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledResponse:
    """Identify a response that has ended, and give its length.

    Attributes:
        observed_tokens: What environments said between its turns.
    """

    batch: int
    row: int
    prompt_tokens: int
    response_tokens: int
    observed_tokens: int = 0
    turns: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """Say when a rank worked on a call, on the host's clock, and what it measured.

    Attributes:
        start_seconds: When all inputs were there and the rank began to work on them.
        end_seconds: When its outputs were ready to be handed over.
    """

    start_seconds: float
    end_seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport:
    """Say which responses of a replica have ended, in the order of their rows, and how many have not; and when."""

    ended: tuple[RolledResponse, ...]
    running: int
    report: CallReport


Outcome = tuple[Mapping[str, Columns], Mapping[str, float]]


def run_task(
    call: TaskCall, pieces: Sequence[Columns], compute: Callable[[Columns], Outcome], *, leads: bool
) -> Any:
    """Join a call's inputs and compute, in measured time.

    Args:
        pieces: Columns of the call's inputs, in their order.

    Returns:
        The task's outputs in their order (None on ranks whose results do not count), then the
        report; a task without outputs returns the report alone.

    Raises:
        DivergedError: An output is not finite.
    """
    start = now_seconds()
    outputs, metrics = compute(joined_columns(call.inputs, call.rows, pieces))
    columns = [outputs[key] if leads else None for key in call.outputs]
    report = CallReport(start_seconds=start, end_seconds=now_seconds(), metrics=metrics)
    for column in columns:
        check_columns(column or {})
    return (*columns, report) if columns else report


def wait_for(references: Sequence[Any]) -> None:
    """Wait until objects exist, without fetching them: waiting is not part of a task."""
    if references:
        ray.wait(list(references), num_returns=len(references), fetch_local=False)


RANDOM_FOLDER = "random"
GENERATOR_FOLDER = "generator"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCall:
    """Ask a rank to write or read its part of a checkpoint.

    Attributes:
        folder: That all nodes share; of one behind a URL, the controller's own.
        rank: Pool and rank, a file's name.
        url: Behind which the checkpoint lies; empty where it is in the folder.
    """

    folder: Path
    rank: str
    url: str = ""

    @property
    def random_file(self) -> Path:
        """Return where this rank's random states are."""
        return self.folder / RANDOM_FOLDER / f"{self.rank}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSetup:
    """Say what a pool's workers will run.

    Attributes:
        tasks: The pool's tasks, in the dataflow's order.
        seed: Of weights and samples.
        end_ids: Tokens each of which ends a response; empty where none does.
        rows: The prompts that the job uses, as texts, where environments read them.
        folder: What relative paths in the job are relative to.
        clock_offsets: By node's id, the seconds that its clock is ahead of the controller's; others share it.
    """

    plan: Plan
    tasks: tuple[Task, ...]
    seed: int
    end_ids: tuple[int, ...]
    rows: list[dict[str, Any]] = field(default_factory=list)
    folder: Path = Path()
    clock_offsets: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSetup:
    """Say what a host pool's workers will run.

    Attributes:
        rows: The prompts that the job uses.
        held_out: Those of its evaluation.
        folder: What relative paths in the job are relative to.
        clock_offsets: By node's id, the seconds that its clock is ahead of the controller's; others share it.
    """

    job: Job
    tasks: tuple[Task, ...]
    rows: list[dict[str, Any]]
    folder: Path
    held_out: Sequence[Mapping[str, Any]] = ()
    clock_offsets: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInPool:
    """Tell a worker who it is in its pool.

    Attributes:
        address: `host:port` at which the pool's ranks meet.
        device: `cpu` or `cuda`.
    """

    rank: int
    ranks: int
    address: str
    device: str


# The clock of a run's reports: that of the controller's machine, on every node.


def set_clock(offsets: Mapping[str, float]) -> None:
    """Take what this node's monotonic clock is ahead of the controller's, by node's id; 0 where none is given."""
    if offsets:
        _ahead["seconds"] = offsets.get(ray.get_runtime_context().get_node_id(), 0.0)


def now_seconds() -> float:
    """Return the seconds of the controller's monotonic clock."""
    return time.monotonic() - _ahead["seconds"]
