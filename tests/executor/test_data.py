"""Prompts: read strictly, given out evenly, encoded as they are."""

import json
import runpy
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from rlplan.errors import FileError
from rlplan.executor.data.prompts import (
    ByteTokenizer,
    PromptStream,
    encode_prompts,
    load_prompts,
    load_tokenizer,
)
from rlplan.job import PromptData
from rlplan.workload import Uniform
from tests.executor.test_tokenizer import write_tokenizer

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
        (
            '{"question": "a", "answer": "1"}\n',
            "line 1: prompt: is missing; allowed: one that prompt_data.column names \\(--prompt-column of init\\): answer, question",
        ),
        ('{"prompt": "a"\n', "line 1: is not JSON"),
        ('["a"]\n', "line 1: is not an object; found 'list'"),
        ('{"prompt": 3}\n', "line 1: prompt: is no prompt; found 3; allowed: a text, or a list"),
        ('{"prompt": "\\ud83d"}\n', "line 1: prompt: has half of a surrogate pair"),
        (
            '{"prompt": [{"role": "user", "content": "a\\udc00"}]}\n',
            "line 1: prompt: has half of a surrogate pair",
        ),
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


def test_a_folder_without_a_data_set_is_refused(tmp_path):
    with pytest.raises(FileError, match="is a folder without a data set; allowed: parquet or"):
        load_prompts(tmp_path)


@pytest.mark.parametrize(
    ("names", "split", "read"),
    [
        (("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"), "train", (0, 1)),
        (("train", "test"), "test", (1,)),
        (("gsm8k_train1", "gsm8k_dev"), "validation", (1,)),
        (("train_sft-00000-of-00001", "train_prefs-00000-of-00001"), "train_prefs", (1,)),
        # As UltraChat's files are named, each with a hash.
        (
            (
                "train_sft-00000-of-00003-a3ecf92756993583",
                "train_gen-00000-of-00003-a6c9fb894be3e50b",
            ),
            "train_sft",
            (0,),
        ),
        (("gsm8k-train-00000-of-00001", "gsm8k-test-00000-of-00001"), "train", (0,)),
        (("train", "dev"), "dev", (1,)),
        (("test-00000-of-00001", "test-00001-of-00002"), "train", (0, 1)),  # there is one split
        (("a", "b"), "train", (0, 1)),
    ],
)
def test_of_a_folder_whose_files_are_of_several_splits_one_is_read(tmp_path, names, split, read):
    for number, name in enumerate(names):
        table = pa.Table.from_pylist([{"prompt": str(number)}])
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    found = load_prompts(tmp_path, PromptData(split=split))
    assert [row["prompt"] for row in sorted(found, key=lambda row: row["prompt"])] == list(
        map(str, read)
    )


def test_files_of_a_folder_are_tables_or_lines_there_or_in_its_folder_data(tmp_path):
    (tmp_path / "data").mkdir()
    lines = {"train": '{"prompt": "a"}\n{"promt": 1}\n', "test": '{"prompt": "b"}\n'}
    for name, text in lines.items():
        (tmp_path / "data" / f"{name}.jsonl").write_text(text)
    mistakes = []
    found = load_prompts(tmp_path, refuse=mistakes.append)
    assert [row["prompt"] for row in found] == ["a"]
    assert [str(each).partition("data/")[2][:28] for each in mistakes] == [
        "train.jsonl: line 2: prompt:"
    ]
    table = pa.Table.from_pylist([{"prompt": "c"}])
    parquet.write_table(table, tmp_path / "data" / "train.parquet")
    assert [row["prompt"] for row in load_prompts(tmp_path)] == ["c"]


def test_a_split_that_no_file_of_several_has_is_named(tmp_path):
    for name in ("train", "test"):
        parquet.write_table(pa.Table.from_pylist([{"prompt": "a"}]), tmp_path / f"{name}.parquet")
    with pytest.raises(
        FileError, match="has no such split; found 'validation'; allowed: test, train; or one"
    ):
        load_prompts(tmp_path, PromptData(split="validation"))
    with pytest.raises(FileError, match="has no such split; found 'train_sft'"):
        load_prompts(tmp_path, PromptData(split="train_sft"))


CHAT = [{"role": "user", "content": "What is 6 x 7?"}]
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": CHAT,
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "42"},
    "extra_info": {"index": 0},
}


def test_verls_columns_are_read_from_parquet_and_the_truth_is_the_answer(tmp_path):
    path = tmp_path / "train.parquet"
    parquet.write_table(pa.Table.from_pylist([VERL]), path)
    expected = {**VERL, "answer": "42", "_origin": f"{path}: row 1"}
    assert load_prompts(path) == [expected]
    assert load_prompts(tmp_path) == [expected]  # a folder of such files
    parquet.write_table(pa.Table.from_pylist([{**VERL, "answer": None}]), path)
    assert load_prompts(path) == [expected]  # of columns that other rows of it have


def saved_data_set(folder, texts):
    """Write what `Dataset.save_to_disk` of Hugging Face datasets does."""
    folder.mkdir(parents=True)
    table = pa.table({"prompt": texts})
    for number, part in enumerate((table.slice(0, 1), table.slice(1))):
        with pa.ipc.new_stream(folder / f"data-0000{number}-of-00002.arrow", part.schema) as out:
            out.write_table(part)
    files = [{"filename": f"data-0000{number}-of-00002.arrow"} for number in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_split": None}))


def test_a_data_set_on_disk_is_read_in_its_order(tmp_path):
    saved_data_set(tmp_path / "set", ["a", "b", "c"])
    assert [row["prompt"] for row in load_prompts(tmp_path / "set")] == ["a", "b", "c"]


def test_a_split_of_a_data_set_is_chosen_by_name(tmp_path):
    saved_data_set(tmp_path / "train", ["a", "b"])
    saved_data_set(tmp_path / "test", ["c", "d"])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert [row["prompt"] for row in load_prompts(tmp_path)] == ["a", "b"]
    tests = load_prompts(tmp_path, PromptData(split="test"))
    assert [row["prompt"] for row in tests] == ["c", "d"]
    with pytest.raises(FileError, match=r"prompt_data\.split: has no such split; found 'tst'"):
        load_prompts(tmp_path, PromptData(split="tst"))


def test_broken_tables_are_named(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"no table")
    with pytest.raises(FileError, match=r"x\.parquet: cannot be read"):
        load_prompts(tmp_path / "x.parquet")
    with pytest.raises(FileError, match=r"y\.parquet: no such file; did you mean 'x\.parquet'"):
        load_prompts(tmp_path / "y.parquet")


@pytest.mark.parametrize("prompt", [[], {"a": 1}, [{"role": "user"}], ["hello"]])
def test_a_chat_that_is_none_is_refused(tmp_path, prompt):
    path = write(tmp_path, json.dumps({"prompt": prompt}))
    with pytest.raises(FileError, match="allowed: a text, or a list of messages"):
        load_prompts(path)


def test_another_column_can_hold_the_prompt(tmp_path):
    path = write(tmp_path, '{"question": "why?"}')
    (row,) = load_prompts(path, PromptData(column="question"))
    assert row["prompt"] == "why?"
    with pytest.raises(FileError, match="line 1: prompt: is missing"):
        load_prompts(path)


TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def chat_tokenizer(folder, template=TEMPLATE):
    write_tokenizer(folder, eos_token="<eos>", chat_template=template)
    return load_tokenizer(str(folder))


def test_chats_are_put_into_the_tokenizers_template(tmp_path):
    tokenizer = chat_tokenizer(tmp_path / "chat")
    rows = [{"prompt": [{"role": "user", "content": "one two"}]}]
    found = encode_prompts(rows, tokenizer, 20)
    assert found.rows[0]["prompt"] == "<user> one two <assistant>"
    assert found.tokens == [tokenizer.encode("<user> one two <assistant>")]


def test_texts_become_the_users_message_where_the_job_says_so(tmp_path):
    tokenizer = chat_tokenizer(tmp_path / "chat")
    rows = [{"prompt": "one"}]
    plain, chat = (
        encode_prompts(rows, tokenizer, 20, PromptData(chat=each)).rows[0]["prompt"]
        for each in (False, True)
    )
    assert (plain, chat) == ("one", "<user> one <assistant>")


def test_a_chat_without_a_template_is_refused(tmp_path):
    rows = [{"prompt": CHAT, "_origin": "x: row 1"}]
    with pytest.raises(FileError, match=r"x: row 1: prompt: is a chat .*`bytes` has no chat temp"):
        encode_prompts(rows, ByteTokenizer(), 99)
    with pytest.raises(FileError, match="its folder has no chat template"):
        encode_prompts(rows, chat_tokenizer(tmp_path / "none", None), 99)
    strict = "{{ raise_exception('no users here') }}"
    with pytest.raises(FileError, match="no users here"):
        encode_prompts(rows, chat_tokenizer(tmp_path / "strict", strict), 99)


def test_prompts_that_are_too_long_are_dropped_or_cut_where_the_job_says_so():
    rows = [{"prompt": "a"}, {"prompt": "abcd"}, {"prompt": "bc"}]
    dropped = encode_prompts(rows, ByteTokenizer(), 3, PromptData(too_long="drop"))
    assert [row["prompt"] for row in dropped.rows] == ["a", "bc"]
    assert dropped.tokens == [[257, 97], [257, 98, 99]]
    assert (dropped.dropped, dropped.cut) == (1, 0)
    cut = encode_prompts(rows, ByteTokenizer(), 3, PromptData(too_long="cut"))
    assert cut.tokens == [[257, 97], [98, 99, 100], [257, 98, 99]]
    assert (cut.dropped, cut.cut) == (0, 1)
    with pytest.raises(FileError, match="no prompt has at most 1 tokens"):
        encode_prompts(rows, ByteTokenizer(), 1, PromptData(too_long="drop"))


def rows_of(count):
    return [{"prompt": str(index)} for index in range(count)]


@given(st.integers(1, 12), st.integers(1, 20), st.integers(0, 5))
def test_every_row_comes_once_in_each_epoch(num_rows, batch_size, seed):
    stream = PromptStream(rows_of(num_rows), batch_size, seed)
    given = [row["prompt"] for iteration in range(num_rows) for row in stream.batch(iteration)]
    assert len(given) == num_rows * batch_size
    for first in range(0, len(given), num_rows):
        assert sorted(given[first : first + num_rows]) == sorted(str(i) for i in range(num_rows))


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
    assert encoded.rows == rows
    assert encoded.tokens == [[257, 97, 98], [257]]


def test_a_prompt_that_is_too_long_is_named_by_its_line(tmp_path):
    rows = load_prompts(write(tmp_path, '{"prompt": "a"}\n{"prompt": "abcd"}\n'))
    with pytest.raises(
        FileError, match=r"prompts\.jsonl: line 2: prompt: has 5 tokens; allowed: 1 to 4 \(workload"
    ):
        encode_prompts(rows, ByteTokenizer(), 4)


def test_the_examples_prompts_are_those_of_their_script_and_of_one_length():
    rows = load_prompts(EXAMPLES / "digits.jsonl")
    assert len(rows) == 256
    assert {len(tokens) for tokens in encode_prompts(rows, ByteTokenizer(), 16).tokens} == {16}
    assert all(row["payload"] in row["prompt"] for row in rows)
    script = runpy.run_path(str(ROOT / "benchmarks" / "make_prompts.py"))
    text = (EXAMPLES / "digits.jsonl").read_text(encoding="utf-8")
    assert script["lines_of"](script["NUM_PROMPTS"], script["SEED"]) == text.splitlines(
        keepends=True
    )
    assert json.loads(text.splitlines()[0])["prompt"] == rows[0]["prompt"]
