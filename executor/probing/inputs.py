"""Made-up rows for timed passes, and the experience that an update makes of them."""

from collections.abc import Callable

import torch
from torch import Tensor

from executor.data.batches import BASELINE, PADDING, PROMPT, RESPONSE
from executor.learning.experience import Batch, make_experience
from executor.learning.multiplier import initial_state
from executor.parallel.meshes import ReduceSum
from executor.weights.shard import ModelShard
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import BYTES_PER_SAMPLE, Task, tasks_of
from rlplan.job import Job
from rlplan.models.model import Head
from rlplan.probing import ModelPass
from rlplan.workload.lengths import Lengths, sample_lengths
from rlplan.workload.work import Workload

# Of each length that stands for a share of a job's.
DRAWS_OF_LENGTH = 16


def half_responses(shape: tuple[int, int]) -> torch.Tensor:
    """Return what stands where in sequences that are half prompt and half response. Shape (B, T)."""
    parts = torch.full(shape, PROMPT, dtype=torch.int8)
    parts[:, shape[1] // 2 :] = RESPONSE
    return parts


def preparation(
    job: Job, head: Head, shape: tuple[int, int], device: torch.device, reduce_sum: ReduceSum
) -> Callable[[], tuple[Batch, dict[str, float]]]:
    """Return what makes an update's experience of rows that are half prompt and half response.

    Args:
        head: Of the model that is updated.
        shape: Rows, and tokens of each.
        reduce_sum: Returns the sum of a tensor over the data-parallel ranks.
    """
    algorithm = load_algorithm(job.algorithm)
    updates = [task for task in tasks_of(algorithm, job) if task.trains]
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


def random_batch(shard: ModelShard, model_pass: ModelPass) -> dict[str, Tensor]:
    """Return a micro-batch of random tokens, half prompt and half response, on the device."""
    shape = (model_pass.sequences, model_pass.tokens)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, model_pass.model.vocab_size, shape, generator=generator)
    return _on_device(shard, tokens, half_responses(shape), generator)


def usual_batch(
    shard: ModelShard, model_pass: ModelPass, workload: Workload, micro_batches: int = 1
) -> dict[str, Tensor]:
    """Return micro-batches as a job has them, on the device: random tokens, so many of a sequence on average.

    Lengths are spread as the job's are over all of them, and neighbouring samples have their prompt in common.
    """
    count, samples = micro_batches * model_pass.sequences, workload.samples_per_prompt
    prompts = spread_lengths(workload.prompt_tokens, -(-count // samples))
    prompts = prompts.repeat_interleave(samples)[:count]
    responses = spread_lengths(workload.response_tokens, count).double()
    left = count * model_pass.tokens - int(prompts.sum())
    responses = (responses * left / responses.sum()).round().long().clamp(min=1)
    generator = torch.Generator().manual_seed(0)
    responses = responses[torch.randperm(count, generator=generator)]
    width = int(prompts.max())
    shape = (count, width + int(responses.max()))
    tokens = torch.randint(0, model_pass.model.vocab_size, shape, generator=generator)
    tokens[:, :width] = tokens[:, :width][torch.arange(count) // samples * samples]
    places = torch.arange(shape[1])
    parts = torch.full(shape, PADDING, dtype=torch.int8)
    parts[(places >= width - prompts[:, None]) & (places < width)] = PROMPT
    parts[(places >= width) & (places < width + responses[:, None])] = RESPONSE
    return _on_device(shard, tokens, parts, generator)


def spread_lengths(lengths: Lengths, count: int) -> Tensor:
    """Return so many lengths in tokens, each in the middle of an equal share of a job's; shape (count,)."""
    drawn = sorted(sample_lengths(lengths, count * DRAWS_OF_LENGTH, seed=0))
    return torch.tensor(drawn[DRAWS_OF_LENGTH // 2 :: DRAWS_OF_LENGTH])


def _on_device(
    shard: ModelShard, tokens: Tensor, parts: Tensor, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return rows with random numbers for all that an update learns from."""
    shape = tokens.shape
    numbers = {
        name: torch.randn(shape, generator=generator).mul_(0.1)
        for name in ("log_probs", "values", "reference_log_probs", "advantages", "returns")
    }
    batch = {"tokens": tokens, "parts": parts, "response_mask": parts == RESPONSE, **numbers}
    return {name: column.to(shard.device) for name, column in batch.items()}
