"""Prompts: read strictly, dealt out evenly, encoded as they are."""

import json
import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.data import PromptStream, encode_prompts, load_prompts
from executor.tokenizer import ByteTokenizer
from rlplan.errors import FileError
from rlplan.lengths import Uniform

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "rlplan_cli" / "demo_job"


def write(folder, text):
    path = folder / "prompts.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_keep_their_keys_and_know_their_line(tmp_path):
    path = write(tmp_path, '{"prompt": "a", "answer": 1}\n\n{"prompt": "b\\n\u2028"}')
    assert load_prompts(path) == [
        {"prompt": "a", "answer": 1, "_origin": f"{path}: line 1"},
        {"prompt": "b\n\u2028", "_origin": f"{path}: line 3"},
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"promt": "b"}\n', "line 2: prompt: is missing; did you mean 'promt'"),
        ('{"prompt": "a"\n', "line 1: is not JSON"),
        ('["a"]\n', "line 1: is not an object; found 'list'"),
        ('{"prompt": 3}\n', "line 1: prompt: is not text; found 3"),
        ("\n\n", "holds no prompts"),
        ("", "holds no prompts"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, text, message):
    with pytest.raises(FileError, match=message):
        load_prompts(write(tmp_path, text))


def test_a_missing_file_names_the_nearest(tmp_path):
    write(tmp_path, "")
    with pytest.raises(FileError, match=r"no such file; did you mean 'prompts\.jsonl'"):
        load_prompts(tmp_path / "prompt.jsonl")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(FileError, match="is a folder"):
        load_prompts(tmp_path)


def rows_of(count):
    return [{"prompt": str(index)} for index in range(count)]


@given(st.integers(1, 12), st.integers(1, 20), st.integers(0, 5))
def test_every_row_comes_once_in_each_epoch(num_rows, batch_size, seed):
    stream = PromptStream(rows_of(num_rows), batch_size, seed)
    dealt = [row["prompt"] for iteration in range(num_rows) for row in stream.batch(iteration)]
    assert len(dealt) == num_rows * batch_size
    for first in range(0, len(dealt), num_rows):
        assert sorted(dealt[first : first + num_rows]) == sorted(str(i) for i in range(num_rows))


def test_a_batch_depends_on_its_number_only():
    straight = [PromptStream(rows_of(10), 4, seed=1).batch(each) for each in range(6)]
    resumed = PromptStream(rows_of(10), 4, seed=1)
    assert [resumed.batch(each) for each in (5, 3, 4)] == [straight[each] for each in (5, 3, 4)]


def test_seeds_and_epochs_have_orders_of_their_own():
    orders = [
        PromptStream(rows_of(50), 50, seed).batch(epoch) for seed in (0, 1) for epoch in (0, 1)
    ]
    assert all(orders[i] != orders[j] for i in range(4) for j in range(i))


def test_prompts_are_encoded_as_long_as_they_are():
    rows = [{"prompt": "ab"}, {"prompt": ""}]
    encoded = encode_prompts(rows, ByteTokenizer(), Uniform(low=2, high=3))
    assert encoded == [[257, 97, 98], [257]]


def test_a_prompt_that_is_too_long_is_named_by_its_line(tmp_path):
    rows = load_prompts(write(tmp_path, '{"prompt": "a"}\n{"prompt": "abcd"}\n'))
    with pytest.raises(
        FileError, match=r"prompts\.jsonl: line 2: prompt: has 5 tokens; allowed: 1 to 4 \(workload"
    ):
        encode_prompts(rows, ByteTokenizer(), 4)


def test_the_examples_prompts_are_those_of_their_script_and_of_one_length():
    rows = load_prompts(EXAMPLES / "digits.jsonl")
    assert len(rows) == 256
    assert {len(tokens) for tokens in encode_prompts(rows, ByteTokenizer(), 16)} == {16}
    assert all(row["payload"] in row["prompt"] for row in rows)
    script = runpy.run_path(str(ROOT / "benchmarks" / "make_prompts.py"))
    text = (EXAMPLES / "digits.jsonl").read_text(encoding="utf-8")
    assert script["lines_of"](script["NUM_PROMPTS"], script["SEED"]) == text.splitlines(
        keepends=True
    )
    assert json.loads(text.splitlines()[0])["prompt"] == rows[0]["prompt"]
