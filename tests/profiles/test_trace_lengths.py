"""Trace files: observed lengths from CSV and JSONL, and one message for every mistake."""

import numpy as np
import pytest

from rlplan.errors import FileError
from rlplan.profiles.jobs.traces import MAX_VALUES, read_trace
from rlplan.workload import TraceFile, longest, mean_length


def trace(name, column="tokens", **more):
    return TraceFile(trace=name, column=column, **more)


def written(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_lengths_come_from_the_column_of_a_csv(tmp_path):
    path = written(tmp_path, "lengths.csv", "id, tokens\na, 12\nb, 30\nc, 7.0\n")
    assert read_trace(trace("lengths.csv"), path).values == (12, 30, 7)


def test_lengths_come_from_the_key_of_a_jsonl(tmp_path):
    path = written(tmp_path, "lengths.jsonl", '{"tokens": 12}\n\n{"tokens": 30, "id": 1}\n')
    assert read_trace(trace("lengths.jsonl"), path).values == (12, 30)


def test_lengths_are_cut_at_the_maximum(tmp_path):
    path = written(tmp_path, "lengths.csv", "tokens\n12\n300\n")
    assert read_trace(trace("lengths.csv", max=100), path).values == (12, 100)


def test_a_long_trace_keeps_its_mean_and_its_longest(tmp_path):
    lengths = np.random.default_rng(0).lognormal(6, 1, 20_000).astype(int) + 1
    path = written(tmp_path, "long.csv", "tokens\n" + "\n".join(map(str, lengths)))
    read = read_trace(trace("long.csv"), path)
    assert len(read.values) == MAX_VALUES
    assert longest(read) == lengths.max()
    assert mean_length(read) == pytest.approx(lengths.mean(), rel=5e-3)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "a.csv",
            "token\n3\n",
            "no such column; found 'tokens'; allowed: token; did you mean 'token'",
        ),
        ("a.csv", "tokens\n3\n-5\n", r"line 3, tokens: is not a length in tokens; found '-5'"),
        ("a.csv", "tokens\n0\n", "found '0'"),
        ("a.csv", "tokens\n2.5\n", "found '2.5'"),
        ("a.csv", "tokens\nnan\n", "found 'nan'"),
        ("a.csv", "tokens\ninf\n", "found 'inf'"),
        ("a.csv", "tokens,id\nmany,1\n", "found 'many'"),
        ("a.csv", "id,tokens\n1\n", "found 'nothing'"),
        ("a.csv", "tokens\n", "has no rows"),
        ("a.csv", "", "has no rows"),
        ("a.jsonl", '{"tokens": 3}\n{tokens}\n', "line 2: is not JSON"),
        ("a.jsonl", "[3]\n", "line 1: is not a JSON object"),
        ("a.jsonl", '{"tokens": true}\n', "found True"),
        ("a.jsonl", '{"tokens": null}\n', "found 'nothing'"),
        ("a.parquet", "x", "is no trace; found '.parquet'; allowed: .csv, .jsonl"),
    ],
)
def test_a_wrong_trace_is_refused_by_file_and_line(tmp_path, name, text, words):
    path = written(tmp_path, name, text)
    with pytest.raises(FileError, match=words) as caught:
        read_trace(trace(name), path)
    assert caught.value.file == str(path)


def test_a_trace_that_is_no_text_is_a_user_error(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"tokens\n\xff\xfe\n")
    with pytest.raises(FileError, match="cannot be read"):
        read_trace(trace("a.csv"), path)
