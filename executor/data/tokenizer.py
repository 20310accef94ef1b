"""Tokenizers: bytes without any file, or a folder with a Hugging Face tokenizer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from rlplan.errors import FileError, UnknownNameError


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
    if tokenizer.eos_token_id is None:
        raise FileError(str(path), "has no end-of-text token", field="eos_token")
    return FolderTokenizer(tokenizer)
