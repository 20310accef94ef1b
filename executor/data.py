"""Prompts: reading them, encoding them, and dealing them out to iterations."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.tokenizer import Tokenizer
from rlplan.errors import FileError, nearest_name
from rlplan.lengths import Lengths, longest

# Where a row comes from ("prompts.jsonl: line 7"), for messages; beside the file's own keys.
ORIGIN = "_origin"


def load_prompts(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSONL file, each with a `prompt`; blank lines are skipped.

    Raises:
        FileError: The file is missing or empty, or a line is no JSON object with a text `prompt`.
    """
    rows = []
    for number, line in enumerate(_read_lines(path), 1):
        if line.strip():
            rows.append(_read_row(line, f"{path}: line {number}"))
    if not rows:
        raise FileError(str(path), "holds no prompts")
    return rows


def _read_lines(path: Path) -> list[str]:
    try:
        # Not splitlines(): a prompt may hold a U+2028, which JSON leaves unescaped.
        return path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileError(
            str(path), "no such file", nearest=nearest_name(path.name, siblings)
        ) from None
    except IsADirectoryError:
        raise FileError(str(path), "is a folder, not a file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(str(path), f"cannot be read: {error}") from None


def _read_row(line: str, origin: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise FileError(origin, f"is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise FileError(origin, "is not an object", value=type(row).__name__, allowed="{...}")
    if "prompt" not in row:
        raise FileError(origin, "is missing", field="prompt", nearest=nearest_name("prompt", row))
    if not isinstance(row["prompt"], str):
        raise FileError(origin, "is not text", field="prompt", value=row["prompt"])
    return {**row, ORIGIN: origin}


class PromptStream:
    """Deal out rows in shuffled epochs; an iteration's batch depends on its number only."""

    def __init__(self, rows: Sequence[dict[str, Any]], batch_size: int, seed: int) -> None:
        assert rows, "a stream needs rows"
        assert batch_size >= 1, "a batch needs rows"
        self._rows, self._batch_size, self._seed = rows, batch_size, seed

    def batch(self, iteration: int) -> list[dict[str, Any]]:
        """Return the rows of an iteration (counted from 0).

        Every row comes once in each epoch of `len(rows)`; a batch may straddle epochs.
        """
        first = iteration * self._batch_size
        orders: dict[int, npt.NDArray[np.int64]] = {}
        batch = []
        for position in range(first, first + self._batch_size):
            epoch, index = divmod(position, len(self._rows))
            if epoch not in orders:
                orders[epoch] = self._order(epoch)
            batch.append(self._rows[orders[epoch][index]])
        return batch

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng([self._seed, epoch]).permutation(len(self._rows))


def encode_prompts(
    rows: Sequence[dict[str, Any]], tokenizer: Tokenizer, lengths: Lengths
) -> list[list[int]]:
    """Return the token ids of each row's prompt, as long as they are.

    Call it on all rows before a run starts, so that a prompt that is too long stops it at once.

    Args:
        rows: What `load_prompts` returned, or a part of it.
        lengths: The workload's `prompt_tokens`; its longest bounds what is allowed.

    Raises:
        FileError: A prompt is empty or longer than that; file and line are named.
    """
    most_tokens = longest(lengths)
    encoded = []
    for number, row in enumerate(rows):
        tokens = tokenizer.encode(row["prompt"])
        if not 1 <= len(tokens) <= most_tokens:
            raise FileError(
                str(row.get(ORIGIN, f"row {number}")),
                f"has {len(tokens)} tokens",
                field="prompt",
                allowed=f"1 to {most_tokens} (workload.prompt_tokens)",
            )
        encoded.append(tokens)
    return encoded
