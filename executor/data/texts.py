"""Texts that are mixed into the actor's updates, one for every response of an iteration."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.data.batches import PADDING, PROMPT, Columns
from executor.data.prompt_files import ORIGIN, read_rows
from executor.data.prompts import PromptStream
from executor.data.tokenizer import Tokenizer
from rlplan.errors import FileError, nearest_name
from rlplan.job import Job

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
