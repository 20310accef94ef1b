"""The work of an iteration: its prompts, and how long responses may get."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlplan.dataflow import begun_work
from rlplan.errors import FileError, PlanError, UserError, nearest_name, refuse
from rlplan.executor.data.batches import PADDING, PROMPT, ROUND_STRIDE, Columns, left_padded
from rlplan.executor.data.prompt_files import (
    NO_COLUMNS,
    ORIGIN,
    NeededColumns,
    Refuse,
    at_once,
    missing_columns,
    one_of_each_kind,
    read_rows,
)
from rlplan.executor.data.prompts import (
    HeldOut,
    Prompts,
    PromptStream,
    Tokenizer,
    encode_prompts,
    held_out_of,
    load_prompts,
    load_tokenizer,
)
from rlplan.job import Job, PromptData
from rlplan.plan import Plan
from rlplan.workload import Environment, at_step, longest, sample_lengths

# Made-up texts of a job without a file of them: enough that batches differ.
MADE_UP_TEXTS = 64
# A stream of random numbers beside those of prompts, which take the job's seed alone.
TEXT_STREAM = 1


class TextBatches:
    """Give the texts of each iteration as columns, cut to the longest sequence of the workload."""

    def __init__(self, job: Job, tokenizer: Tokenizer, folder: Path) -> None:
        assert job.pretrain is not None, "the job mixes no texts in"
        most = job.workload.longest_sequence_tokens
        if job.pretrain.file is None:
            rows = _made_up(job)
        else:
            rows = [_as_text(row) for row in read_rows(folder / job.pretrain.file)]
        encoded = [{"tokens": tokenizer.encode(row["text"])[:most]} for row in rows]
        self._pad_id = tokenizer.pad_id
        self._stream = PromptStream(encoded, job.workload.sequences, job.seed + TEXT_STREAM)

    def columns(self, iteration: int) -> Columns:
        """Return right-padded `pretrain_tokens` (sequences, T) and their `pretrain_parts`."""
        texts = [row["tokens"] for row in self._stream.batch(iteration)]
        width = max(map(len, texts))
        tokens = np.full((len(texts), width), self._pad_id, dtype=np.int64)
        parts = np.full((len(texts), width), PADDING, dtype=np.int8)
        for index, ids in enumerate(texts):
            tokens[index, : len(ids)] = ids
            parts[index, : len(ids)] = PROMPT
        return {"pretrain_tokens": tokens, "pretrain_parts": parts}


def _as_text(row: dict[str, Any]) -> dict[str, Any]:
    if "text" not in row:
        known = [key for key in row if key != ORIGIN]
        raise FileError(
            row[ORIGIN], "is missing", field="text", nearest=nearest_name("text", known)
        )
    if not isinstance(row["text"], str) or not row["text"]:
        raise FileError(row[ORIGIN], "is no text", field="text", value=row["text"])
    return row


def _made_up(job: Job) -> list[dict[str, Any]]:
    """Return texts of random words, as long as a sequence of the workload can be."""
    generator: np.random.Generator = np.random.default_rng([job.seed, TEXT_STREAM])
    letters: npt.NDArray[np.str_] = np.array(list("abcdefghijklmnopqrstuvwxyz "))
    length = job.workload.longest_sequence_tokens
    return [{"text": "".join(generator.choice(letters, size=length))} for _ in range(MADE_UP_TEXTS)]


# Rows of made-up prompts of a job without a prompts file: enough that batches differ.
MADE_UP_BATCHES = 4


def job_of_batches(plan: Plan) -> Job:
    """Return the job as its batches of prompts have it: of all that is begun, where generation ends early.

    Rows are numbered in these batches, and random numbers and lengths belong to the rows.
    """
    if not plan.ends_generation_early:
        return plan.job
    return replace(plan.job, workload=begun_work(plan.job.workload))


def response_lengths(job: Job, batch: int) -> npt.NDArray[np.int64]:
    """Return the most tokens of each response to a batch of prompts. Shape (sequences,).

    The simulator samples the same distribution, so both mean the same work. Where lengths grow over a training, they are
    those of the batch's iteration among the job's `iterations`.

    Args:
        batch: Number of the batch: its iteration, or a number of its own when sampled again.
    """
    work = job.workload
    lengths = at_step(work.response_tokens, batch % ROUND_STRIDE + 1, job.iterations)
    sampled = sample_lengths(lengths, work.sequences, job.seed + batch)
    return np.array(sampled, dtype=np.int64)


def observation_limit(environment: Environment) -> int:
    """Return the most tokens of one observation."""
    given = environment.observation_tokens
    return 0 if given is None else longest(given)


def most_observed_tokens(environments: Sequence[Environment]) -> int:
    """Return the most tokens of all observations of an episode; a reset may give one too."""
    return max((longest(each.turns) * observation_limit(each) for each in environments), default=0)


class JobData(NamedTuple):
    """Hold a job's tokenizer and prompts, None where they could not be read, and all mistakes in its data."""

    tokenizer: Tokenizer | None
    prompts: Prompts | None
    held_out: HeldOut | None
    mistakes: list[UserError]


def read_data(job: Job, folder: Path, columns: NeededColumns = NO_COLUMNS) -> JobData:
    """Return a job's tokenizer and prompts, and those of its evaluation.

    Args:
        folder: What relative paths in the job are relative to.
        columns: Keys that every row of a prompts file must have beside its prompt.
    """
    mistakes: list[UserError] = []
    tokenizer, found, held_out = None, None, None
    try:
        tokenizer = load_tokenizer(job.tokenizer, folder)
        _check_vocabulary(job, tokenizer)
    except UserError as error:
        mistakes.append(error)
    try:
        rows = prompt_rows(job, tokenizer, folder, mistakes.append)
        if job.prompts_file is not None:
            mistakes += missing_columns(rows, columns.prompts, columns.check_prompts)
        if tokenizer is not None and rows:
            work, data = job.workload, job.prompt_data
            found = encode_prompts(rows, tokenizer, work.prompt_tokens, data, mistakes.append)
    except UserError as error:
        mistakes.append(error)
    try:
        if job.pretrain is not None and tokenizer is not None:
            TextBatches(job, tokenizer, folder)
    except UserError as error:
        mistakes.append(error)
    if tokenizer is not None:
        held_out = held_out_of(job, folder, tokenizer, columns, mistakes)
    return JobData(tokenizer, found, held_out, one_of_each_kind(mistakes))


def read_prompts(
    file: Path, tokenizer: str, folder: Path, data: PromptData | None = None
) -> Prompts:
    """Return all prompts of a file, however long, for a job that is still to be written.

    Args:
        folder: What a relative tokenizer is relative to.
        data: How it is read; None as usual.

    Raises:
        UserError: The tokenizer or the file has mistakes; those of rows are said all at once.
    """
    mistakes: list[UserError] = []
    reader = load_tokenizer(tokenizer, folder)
    rows = load_prompts(file, data, refuse=mistakes.append)
    found = (
        encode_prompts(rows, reader, sys.maxsize, data, refuse=mistakes.append) if rows else None
    )
    refuse(one_of_each_kind(mistakes))
    assert found is not None, "a file without mistakes has prompts"
    return found


def _check_vocabulary(job: Job, tokenizer: Tokenizer) -> None:
    vocab = job.architecture("actor").vocab_size
    if tokenizer.vocab_size > vocab:
        raise PlanError(
            f"tokenizer {job.tokenizer} has {tokenizer.vocab_size} tokens: the actor's"
            f" vocabulary holds {vocab}"
        )


class PromptBatches:
    """Give the prompts of each iteration, as rows (for rules) and as columns (for generation).

    Args:
        folder: What relative paths in the job are relative to.
        columns: Keys that every row of a prompts file must have beside its prompt.

    Attributes:
        rows: All prompts that the job uses, as texts.
        dropped: How many were left out for their length.
        too_long: What became of prompts that are too long, in words; empty without any.
        held_out: Those of its evaluation; None without one.

    Raises:
        UserError: The data has mistakes; all are said.
    """

    def __init__(self, job: Job, folder: Path, columns: NeededColumns = NO_COLUMNS) -> None:
        self.folder = folder
        tokenizer, found, self.held_out, mistakes = read_data(job, folder, columns)
        refuse(mistakes)
        assert tokenizer is not None, "data without mistakes has a tokenizer"
        assert found is not None, "data without mistakes has prompts"
        self.tokenizer = tokenizer
        self.rows, self.dropped = found.rows, found.dropped
        self.too_long = _words_of_long(found, self.held_out)
        self._encoded = {
            id(row): tokens for row, tokens in zip(found.rows, found.tokens, strict=True)
        }
        self._job, self._stream = job, prompt_stream(job, self.rows)
        self._texts = TextBatches(job, self.tokenizer, folder) if job.pretrain else None

    def columns(self, iteration: int) -> Columns:
        """Return left-padded `prompt_tokens` (rows, P) and where they are, `prompt_present`.

        A row is a sequence: the samples of one prompt are consecutive. Where the job mixes texts
        in, there are columns of them beside.
        """
        encoded = [self._encoded[id(row)] for row in self._stream.batch(iteration)]
        tokens, present = left_padded(encoded, self.tokenizer.pad_id)
        samples = self._job.workload.samples_per_prompt
        columns = {
            "prompt_tokens": tokens.repeat(samples, axis=0),
            "prompt_present": present.repeat(samples, axis=0),
        }
        return columns if self._texts is None else columns | self._texts.columns(iteration)


def _words_of_long(found: Prompts, held_out: HeldOut | None) -> str:
    """Return how many prompts are not as they are in their file, for their length; empty where all are."""
    counts = {
        "prompts left out for their length": found.dropped,
        "prompts cut at their beginning": found.cut,
    }
    if held_out is not None:
        counts["held-out prompts left out for their length"] = held_out.dropped
        counts["held-out prompts cut at their beginning"] = held_out.cut
    return "; ".join(f"{words}: {count:,}" for words, count in counts.items() if count)


def prompt_stream(job: Job, rows: Sequence[dict[str, Any]]) -> PromptStream:
    """Return the stream of a job's prompts; the same wherever it is built from the same rows."""
    return PromptStream(rows, job.workload.prompts, job.seed)


def prompt_rows(
    job: Job, tokenizer: Tokenizer | None, folder: Path, refuse_row: Refuse = at_once
) -> list[dict[str, Any]]:
    """Return the rows of the job's prompts file; without one, made-up words of the job's lengths.

    Args:
        tokenizer: None makes up no words.
        refuse_row: Given the mistake of each row that has one; the row is left out where this returns.
    """
    if job.prompts_file is not None:
        return load_prompts(folder / job.prompts_file, job.prompt_data, refuse_row)
    if tokenizer is None:
        return []
    generator = np.random.default_rng(job.seed)
    count = MADE_UP_BATCHES * job.workload.prompts
    lengths = sample_lengths(job.workload.prompt_tokens, count, job.seed)
    overhead = len(tokenizer.encode(""))
    return [{"prompt": _word(max(0, length - overhead), generator)} for length in lengths]


def first_rows(job: Job, folder: Path, count: int) -> list[dict[str, Any]]:
    """Return the first prompts that a job uses, as its rules are given them.

    Raises:
        FileError: The prompts cannot be read, or are too long.
    """
    tokenizer = load_tokenizer(job.tokenizer, folder)
    rows = prompt_rows(job, tokenizer, folder)
    if job.prompt_data is None or job.prompt_data.too_long != "drop":
        rows = rows[:count]
    return encode_prompts(rows, tokenizer, job.workload.prompt_tokens, job.prompt_data).rows[:count]


def _word(letters: int, generator: np.random.Generator) -> str:
    return "".join(generator.choice(list("abcdefghijklmnopqrstuvwxyz"), size=letters))
