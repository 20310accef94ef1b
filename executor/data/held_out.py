"""Held-out prompts: what an evaluation asks, every time the same."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlplan.errors import FileError, UserError
from rlplan.executor.data.batches import Columns, left_padded
from rlplan.executor.data.mistakes import missing_columns
from rlplan.executor.data.prompts import Prompts, encode_prompts, load_prompts
from rlplan.executor.data.tokenizer import Tokenizer
from rlplan.job import Job

# In place of an iteration's number it starts the random numbers of all evaluations: what differs between two of
# them are weights alone. Far above any iteration's and any number of a batch.
EVALUATION = 2**62


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Hold an evaluation's prompts: as texts, and as columns whose rows are its responses.

    Attributes:
        columns: Left-padded `prompt_tokens` (rows, P) and where they are, `prompt_present`; the samples of a
            prompt are consecutive.
        dropped: Prompts that were left out for their length.
    """

    rows: list[dict[str, object]]
    columns: Columns
    dropped: int


def held_out_of(
    job: Job,
    folder: Path,
    tokenizer: Tokenizer,
    columns: Sequence[str],
    mistakes: list[UserError],
) -> HeldOut | None:
    """Return the prompts of a job's evaluation, and add to its mistakes; None without any, or with mistakes.

    Args:
        folder: What relative paths in the job are relative to.
        columns: Keys that every row must have beside its prompt.
    """
    evaluation = job.evaluation
    if evaluation is None:
        return None
    found: list[UserError] = list(_contradictions(job))
    prompts: Prompts | None = None
    try:
        rows = load_prompts(folder / evaluation.prompts_file, job.prompt_data, found.append)
        found += missing_columns(rows, columns)
        if rows:
            lengths, data = job.workload.prompt_tokens, job.prompt_data
            prompts = encode_prompts(rows, tokenizer, lengths, data, found.append)
    except UserError as error:
        found.append(error)
    mistakes += found
    if found or prompts is None:
        return None
    tokens, present = left_padded(prompts.tokens, tokenizer.pad_id)
    samples = evaluation.samples_per_prompt
    held = {
        "prompt_tokens": tokens.repeat(samples, axis=0),
        "prompt_present": present.repeat(samples, axis=0),
    }
    return HeldOut(prompts.rows, held, prompts.dropped)


def _contradictions(job: Job) -> Iterator[UserError]:
    """Yield what an evaluation cannot be, whatever its prompts are."""
    evaluation = job.evaluation
    assert evaluation is not None
    if evaluation.samples_per_prompt > 1 and not evaluation.temperature:
        yield FileError(
            "job",
            "gives the same response to a prompt each time",
            field="evaluation.temperature",
            value=evaluation.temperature,
            allowed="above 0, or samples_per_prompt: 1",
        )
    if job.environments:
        yield FileError(
            "job",
            "plays no episodes",
            field="evaluation",
            allowed="a job without environments",
        )
    if job.rewards is None or job.rewards.function is None:
        yield FileError(
            "job",
            "has nobody who judges: the processes that call the job's reward function do",
            field="rewards.function",
            allowed="a reward function (its weight may be 0)",
        )
