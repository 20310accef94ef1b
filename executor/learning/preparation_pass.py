"""The part of an update before its first micro-batch, on rows that are made up."""

from collections.abc import Callable

import torch

from executor.data.batches import PROMPT, RESPONSE
from executor.data.columns import BASELINE
from executor.learning.experience import Batch, Reduce, make_experience
from executor.learning.multiplier import initial_state
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import BYTES_PER_SAMPLE, Task, tasks_of
from rlplan.job import Job
from rlplan.model import Head


def half_responses(shape: tuple[int, int]) -> torch.Tensor:
    """Return what stands where in sequences that are half prompt and half response. Shape (B, T)."""
    parts = torch.full(shape, PROMPT, dtype=torch.int8)
    parts[:, shape[1] // 2 :] = RESPONSE
    return parts


def preparation(
    job: Job, head: Head, shape: tuple[int, int], device: torch.device, reduce_sum: Reduce
) -> Callable[[], tuple[Batch, dict[str, float]]]:
    """Return what makes an update's experience of rows that are half prompt and half response.

    Args:
        head: Of the model that is updated.
        shape: Rows, and tokens of each.
        reduce_sum: Returns the sum of a tensor over the data-parallel ranks.
    """
    algorithm = load_algorithm(job.algorithm)
    updates = [task for task in tasks_of(algorithm, job) if task.kind == "train"]
    task = next(task for task in updates if task.head == head)
    columns = _columns(task, shape, device)
    state = initial_state(algorithm, job)
    return lambda: make_experience(job, algorithm, columns, state, reduce_sum)


def _columns(task: Task, shape: tuple[int, int], device: torch.device) -> dict[str, torch.Tensor]:
    """Return random columns of everything that a task waits for."""
    generator = torch.Generator().manual_seed(0)
    sequences = {"tokens": torch.zeros(shape, dtype=torch.long), "parts": half_responses(shape)}
    columns: dict[str, torch.Tensor] = {}
    for key in task.inputs:
        prefix = BASELINE if key.startswith(BASELINE) else ""
        match key.removeprefix(BASELINE):
            case "sequences":
                columns |= {prefix + name: column for name, column in sequences.items()}
            case "pretrain":
                columns |= {f"pretrain_{name}": column for name, column in sequences.items()}
            case _:
                size = shape[:1] if key in BYTES_PER_SAMPLE else shape
                columns[key] = torch.randn(size, generator=generator)
    return {name: column.to(device) for name, column in columns.items()}
