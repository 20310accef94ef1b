"""Prompts: their tokens, batches of them in a stream, and those that are held out."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from rlplan.errors import FileError, UnknownNameError, UserError, nearest_name
from rlplan.executor.data.batches import Columns, left_padded
from rlplan.executor.data.prompt_files import (
    MESSAGES,
    ORIGIN,
    NeededColumns,
    Refuse,
    Row,
    at_once,
    missing_columns,
    read_rows,
)
from rlplan.job import Job, PromptData
from rlplan.rules.rule import listed
from rlplan.workload import Lengths, longest

# JSON may have it, as in "\ud83d"; no tokenizer takes it.
HALF_CHARACTER = re.compile("[\ud800-\udfff]")


class Tokenizer(Protocol):
    """Turn text into token ids and back."""

    @property
    def vocab_size(self) -> int:
        """Return how many ids a model's embedding must hold."""

    @property
    def pad_id(self) -> int:
        """Return the id that fills rows up; models never see it attended."""

    @property
    def eos_id(self) -> int:
        """Return the id that ends a response."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt, with what the tokenizer puts before a text."""

    def encode_more(self, text: str) -> list[int]:
        """Return the ids of a text that goes on where another one ended."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[int]]:
        """Return a chat as text and ids, up to where the answer begins.

        Raises:
            ValueError: There is no chat template, or it does not take these messages.
        """

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of ids, without special tokens."""


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """Take UTF-8 bytes as tokens: 256 bytes, then pad, bos and eos; one id is spare.

    The vocabulary of 260 divides by the usual tensor-parallel sizes of tiny models.
    """

    vocab_size: ClassVar[int] = 260
    pad_id: ClassVar[int] = 256
    bos_id: ClassVar[int] = 257
    eos_id: ClassVar[int] = 258

    def encode(self, text: str) -> list[int]:
        """Return bos and the text's bytes."""
        return [self.bos_id, *text.encode()]

    def encode_more(self, text: str) -> list[int]:
        """Return the text's bytes."""
        return list(text.encode())

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],  # noqa: ARG002  # the protocol's
    ) -> tuple[str, list[int]]:
        """Refuse: bytes have no chat template.

        Raises:
            ValueError: Always.
        """
        raise ValueError("the tokenizer `bytes` has no chat template; name a folder with one")

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of the bytes; what is no UTF-8 becomes U+FFFD, special ids are left out."""
        return bytes(token for token in tokens if 0 <= token < self.pad_id).decode(errors="replace")


class FolderTokenizer:
    """Wrap the Hugging Face tokenizer that lies in a folder."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        """Return how many ids there are, added ones included."""
        return len(self._tokenizer)

    @property
    def pad_id(self) -> int:
        """Return the padding id; tokenizers without one pad with eos."""
        pad = self._tokenizer.pad_token_id
        return self.eos_id if pad is None else int(pad)

    @property
    def eos_id(self) -> int:
        """Return the id that ends a response."""
        return int(self._tokenizer.eos_token_id)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt, special tokens included."""
        return [int(token) for token in self._tokenizer.encode(text)]

    def encode_more(self, text: str) -> list[int]:
        """Return the ids of a text that goes on where another one ended, without special tokens."""
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=False)]

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[int]]:
        """Return a chat in the folder's template as text and ids, up to where the answer begins.

        Raises:
            ValueError: The folder has no chat template, or it does not take these messages.
        """
        if not self._tokenizer.chat_template:
            raise ValueError("its folder has no chat template")
        try:
            text = str(
                self._tokenizer.apply_chat_template(
                    list(messages), tokenize=False, add_generation_prompt=True
                )
            )
        except Exception as error:  # noqa: BLE001  # a template is a program of its authors
            raise ValueError(f"{type(error).__name__}: {error}") from None
        # The template writes the special tokens itself.
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return text, [int(token) for token in ids]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of ids, without special tokens."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


def load_tokenizer(spec: str, folder: Path | None = None) -> Tokenizer:
    """Return the tokenizer that a job names.

    Args:
        spec: "bytes", or a folder with a Hugging Face tokenizer.
        folder: What a relative `spec` is relative to: the job file's folder.

    Raises:
        UnknownNameError: It is neither "bytes" nor a folder.
        FileError: The folder holds no tokenizer, or one that has no end-of-text token.
    """
    if spec == "bytes":
        return ByteTokenizer()
    path = (folder or Path()) / spec
    if not path.is_dir():
        raise UnknownNameError("tokenizer", spec, ["bytes"], hint=f"no folder {path}")
    # It takes seconds to load, and the byte tokenizer does without.
    from transformers import AutoTokenizer  # noqa: PLC0415

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileError(str(path), f"holds no tokenizer that can be read: {reason}") from None
    if len(tokenizer) <= len(tokenizer.get_added_vocab()):  # made of a `config.json` alone
        raise FileError(str(path), "holds no tokenizer: there are no tokens beside special ones")
    if tokenizer.eos_token_id is None:
        raise FileError(str(path), "has no end-of-text token", field="eos_token")
    return FolderTokenizer(tokenizer)


@dataclass(frozen=True, slots=True)
class Prompts:
    """Hold the prompts that a run uses.

    Attributes:
        rows: With the `prompt` as text, the tokenizer's chat template applied; messages of a chat are kept
            beside it.
        tokens: Of each row's prompt.
        dropped: How many were left out for their length.
        cut: How many lost their beginning for it.
    """

    rows: list[Row]
    tokens: list[list[int]]
    dropped: int = 0
    cut: int = 0


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
        nearest = nearest_name(column, known)
        allowed = None
        if nearest is None and known:
            names = listed(sorted(known))
            allowed = f"one that prompt_data.column names (--prompt-column of init): {names}"
        raise FileError(origin, "is missing", field=column, allowed=allowed, nearest=nearest)
    prompt = row[column]
    if not isinstance(prompt, str):
        _check_messages(prompt, origin, column)
    texts = [prompt] if isinstance(prompt, str) else [each["content"] for each in prompt]
    if any(isinstance(text, str) and HALF_CHARACTER.search(text) for text in texts):
        problem = "has half of a surrogate pair, which is no character"
        raise FileError(origin, problem, field=column)
    found = {**row, "prompt": prompt}
    judged = row.get("reward_model")
    if row.get("answer") is None and isinstance(judged, dict) and "ground_truth" in judged:
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
        refuse: Called with the mistake of each wrong prompt (all that are too long count as one mistake); if it
            returns, the prompt is left out.

    Raises:
        FileError: A prompt is empty or longer than that, and the job does not say to drop or cut
            such; or no prompt is left; file and line are named.
    """
    data, most_tokens = data or PromptData(), longest(lengths)
    kept, encoded = [], []
    lengths_refused: dict[str, int] = {}
    refused = cut = 0
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
            cut += 1
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
    return Prompts(kept, encoded, len(rows) - len(kept), cut)


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
        cut: Prompts that lost their beginning for it.
    """

    rows: list[dict[str, object]]
    columns: Columns
    dropped: int
    cut: int = 0


def held_out_of(
    job: Job,
    folder: Path,
    tokenizer: Tokenizer,
    columns: NeededColumns,
    mistakes: list[UserError],
) -> HeldOut | None:
    """Return the prompts of a job's evaluation, and add to its mistakes; None without any, or with mistakes.

    Args:
        folder: What relative paths in the job are relative to.
        columns: What every row must have beside its prompt.
    """
    evaluation = job.evaluation
    if evaluation is None:
        return None
    found: list[UserError] = list(_contradictions(job))
    prompts: Prompts | None = None
    if evaluation.prompts_file is None:
        problem = "is missing: an evaluation is run on its own prompts"
        found.append(FileError("job", problem, field="evaluation.prompts_file", allowed="a file"))
        mistakes += found
        return None
    try:
        rows = load_prompts(folder / evaluation.prompts_file, job.prompt_data, found.append)
        found += missing_columns(rows, columns.held_out, columns.check_held_out)
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
    return HeldOut(prompts.rows, held, prompts.dropped, prompts.cut)


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
