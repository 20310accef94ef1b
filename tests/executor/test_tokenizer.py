"""Tokenizers: bytes there and back, and folders with a tokenizer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError, UnknownNameError
from rlplan.executor.data.prompts import ByteTokenizer, load_tokenizer


@given(st.text())
def test_bytes_decode_to_what_was_encoded(text):
    assert ByteTokenizer().decode(ByteTokenizer().encode(text)) == text


def test_bytes_have_four_more_ids_than_a_byte_has_values():
    tokenizer = load_tokenizer("bytes")
    assert isinstance(tokenizer, ByteTokenizer)
    assert (tokenizer.vocab_size, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (
        260, 256, 257, 258,
    )  # fmt: skip
    assert tokenizer.encode("é1") == [257, 0xC3, 0xA9, 0x31]


@given(st.lists(st.integers(0, 259)))
def test_any_ids_decode_and_special_ones_leave_no_text(tokens):
    text = ByteTokenizer().decode(tokens)
    assert text == ByteTokenizer().decode([token for token in tokens if token < 256])


def test_bytes_that_are_no_text_become_replacement_characters():
    assert ByteTokenizer().decode([0x31, 0xFF, 0x32, 258, 259]) == "1\ufffd2"


def write_tokenizer(folder, **special_tokens):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: index for index, word in enumerate(["<eos>", "<unk>", "one", "two"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", **special_tokens)
    fast.save_pretrained(folder)


def test_a_folder_relative_to_the_job_is_read(tmp_path):
    write_tokenizer(tmp_path / "words", eos_token="<eos>")
    tokenizer = load_tokenizer("words", tmp_path)
    assert tokenizer.encode("two one") == [3, 2]
    assert tokenizer.decode([2, 3, 0]) == "one two"
    assert (tokenizer.vocab_size, tokenizer.pad_id, tokenizer.eos_id) == (4, 0, 0)


def test_a_folder_whose_tokenizer_ends_no_text_is_refused(tmp_path):
    write_tokenizer(tmp_path / "words")
    with pytest.raises(FileError, match="eos_token: has no end-of-text token"):
        load_tokenizer("words", tmp_path)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="empty: holds no tokenizer"):
        load_tokenizer("empty", tmp_path)


def test_a_tokenizer_of_special_tokens_alone_is_refused(tmp_path):
    """As `transformers` makes of a folder that has a configuration and no tokenizer."""
    (tmp_path / "model").mkdir()
    config = {"model_type": "qwen3", "eos_token_id": 1}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(FileError, match="model: holds no tokenizer: there are no tokens beside"):
        load_tokenizer("model", tmp_path)


def test_an_unknown_name_names_the_nearest(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'bytes'"):
        load_tokenizer("byte", tmp_path)
