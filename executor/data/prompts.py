"""Prompts: as text and as tokens, and in batches for iterations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlplan.errors import FileError, nearest_name
from rlplan.executor.data.prompt_files import MESSAGES, ORIGIN, Refuse, Row, at_once, read_rows
from rlplan.executor.data.tokenizer import Tokenizer
from rlplan.job import PromptData
from rlplan.workload.lengths import Lengths, longest


@dataclass(frozen=True, slots=True)
class Prompts:
    """Hold the prompts that a run uses.

    Attributes:
        rows: With the `prompt` as text, the tokenizer's chat template applied; messages of a chat are kept
            beside it.
        tokens: Of each row's prompt.
        dropped: How many were left out for their length.
    """

    rows: list[Row]
    tokens: list[list[int]]
    dropped: int = 0


def load_prompts(path: Path, data: PromptData | None = None, refuse: Refuse = at_once) -> list[Row]:
    """Return the rows of a file or folder, each with a `prompt`: a text, or a chat's messages.

    Where a row has verl's `reward_model` with its `ground_truth` and no `answer`, that is its
    `answer`, with which rules compare.

    Args:
        path: As for `read_rows`.
        data: Says which column and split; None takes the usual ones.
        refuse: Given the mistake of each row that has one; the row is left out where this returns.

    Raises:
        FileError: The file is missing or broken, or a row has no such prompt.
    """
    data = data or PromptData()
    found = []
    for row in read_rows(path, data.split, refuse):
        try:
            found.append(_as_prompt(row, data.column))
        except FileError as error:
            refuse(error)
    return found


def _as_prompt(row: Row, column: str) -> Row:
    origin = row[ORIGIN]
    if column not in row:
        known = [key for key in row if key != ORIGIN]
        raise FileError(origin, "is missing", field=column, nearest=nearest_name(column, known))
    prompt = row[column]
    if not isinstance(prompt, str):
        _check_messages(prompt, origin, column)
    found = {**row, "prompt": prompt}
    judged = row.get("reward_model")
    if "answer" not in row and isinstance(judged, dict) and "ground_truth" in judged:
        found["answer"] = judged["ground_truth"]
    return found


def _check_messages(prompt: Any, origin: str, column: str) -> None:
    allowed = "a text, or a list of messages with `role` and `content`"
    if not isinstance(prompt, list) or not prompt:
        raise FileError(origin, "is no prompt", field=column, value=prompt, allowed=allowed)
    for number, message in enumerate(prompt):
        if not isinstance(message, dict) or not {"role", "content"} <= set(message):
            field = f"{column}.{number}"
            raise FileError(origin, "is no message", field=field, value=message, allowed=allowed)


class PromptStream:
    """Give batches of rows in shuffled epochs; an iteration's batch depends on its number only."""

    def __init__(self, rows: Sequence[Row], batch_size: int, seed: int) -> None:
        assert rows, "a stream needs rows"
        assert batch_size >= 1, "a batch needs rows"
        self._rows, self._batch_size, self._seed = rows, batch_size, seed

    def batch(self, iteration: int) -> list[Row]:
        """Return the rows of an iteration (counted from 0).

        Every row comes once in each epoch of `len(rows)`; a batch may straddle epochs.
        """
        first = iteration * self._batch_size
        orders: dict[int, npt.NDArray[np.int64]] = {}
        batch = []
        for position in range(first, first + self._batch_size):
            epoch, index = divmod(position, len(self._rows))
            if epoch not in orders:
                generator = np.random.default_rng([self._seed, epoch])
                orders[epoch] = generator.permutation(len(self._rows))
            batch.append(self._rows[orders[epoch][index]])
        return batch


def encode_prompts(
    rows: Sequence[Row],
    tokenizer: Tokenizer,
    lengths: Lengths,
    data: PromptData | None = None,
    refuse: Refuse = at_once,
) -> Prompts:
    """Return the prompts as text and tokens; the job says what becomes of those that are too long.

    Call it on all rows before a run starts, so that a prompt that is too long stops it at once.

    Args:
        rows: What `load_prompts` returned, or a part of it.
        lengths: The workload's `prompt_tokens`; its longest bounds what is allowed.
        data: Says what becomes of prompts that are too long, and whether texts are a chat's
            message; None takes the usual.
        refuse: Given the mistake of each prompt that has one (those that are too long have one
            together); the prompt is left out where this returns.

    Raises:
        FileError: A prompt is empty or longer than that, and the job does not say to drop or cut
            such; or no prompt is left; file and line are named.
    """
    data, most_tokens = data or PromptData(), longest(lengths)
    kept, encoded = [], []
    lengths_refused: dict[str, int] = {}
    refused = 0
    for number, row in enumerate(rows):
        origin = str(row.get(ORIGIN, f"row {number}"))
        try:
            text, tokens = _encoded(row["prompt"], tokenizer, origin, chat=data.chat)
        except FileError as error:
            refuse(error)
            refused += 1
            continue
        if len(tokens) > most_tokens and data.too_long == "cut":
            tokens = tokens[-most_tokens:]  # what is asked usually comes last
        if len(tokens) > most_tokens and data.too_long == "drop":
            continue
        if not 1 <= len(tokens) <= most_tokens:
            lengths_refused[origin] = len(tokens)
            continue
        messages = {} if isinstance(row["prompt"], str) else {MESSAGES: row["prompt"]}
        kept.append({**row, "prompt": text, **messages})
        encoded.append(tokens)
    if lengths_refused:
        refuse(_wrong_lengths(lengths_refused, most_tokens))
    elif not kept and not refused:
        raise FileError(
            str(rows[0].get(ORIGIN, "row 0")), f"no prompt has at most {most_tokens} tokens"
        )
    return Prompts(kept, encoded, len(rows) - len(kept))


def _wrong_lengths(lengths: Mapping[str, int], most_tokens: int) -> FileError:
    """Return what to say of prompts that are empty or too long, by where they are from."""
    (origin, tokens), *others = lengths.items()
    problem = f"has {tokens} tokens"
    if others:
        longest_one = max(lengths.values())
        problem += f", and {len(others)} more have too many or none (the longest {longest_one})"
    allowed = f"1 to {most_tokens} (workload.prompt_tokens), or prompt_data.too_long: drop"
    return FileError(origin, problem, field="prompt", allowed=allowed)


def _encoded(
    prompt: Any, tokenizer: Tokenizer, origin: str, *, chat: bool
) -> tuple[str, list[int]]:
    if isinstance(prompt, str) and not chat:
        return prompt, tokenizer.encode(prompt)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    try:
        return tokenizer.encode_chat(messages)
    except ValueError as error:
        raise FileError(
            origin, f"is a chat that the job's tokenizer cannot render: {error}", field="prompt"
        ) from None
