"""W&B's own file of a run: laws of its records, and its steps as other logs have them."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.planner.measured.following import changes_of, followed
from rlplan.planner.measured.logs import read_log
from rlplan.planner.measured.trackers import BLOCK_BYTES, PART_HEAD_BYTES, wandb_file, wandb_steps

HEAD = b":W&B" + struct.pack("<HB", 0xBEE1, 0)


def varint(number):
    found = bytearray()
    while True:
        number, low = number >> 7, number & 0x7F
        found.append(low | (0x80 if number else 0))
        if not number:
            return bytes(found)


def delimited(field, content):
    return varint(field << 3 | 2) + varint(len(content)) + content


def history(figures, *, typed=False):
    """Return a record of the history: values as JSON, or as newer schemas type them."""
    items = b""
    for name, value in figures.items():
        if not typed:
            held = delimited(16, json.dumps(value).encode())
        elif isinstance(value, int):
            held = varint(5 << 3) + varint(value << 1 if value >= 0 else (-value << 1) - 1)
        else:
            held = varint(6 << 3 | 1) + struct.pack("<d", value)
        parts = b"".join(delimited(2, part.encode()) for part in name.split("|"))
        items += delimited(1, parts + held)
    return varint(1 << 3) + varint(7) + delimited(2, items)


def wandb_log(records):
    """Return a file of W&B's: records in blocks, those that do not fit into one in parts."""
    out = bytearray(HEAD)
    for record in records:
        rest, first = record, True
        while rest or first:
            left = BLOCK_BYTES - len(out) % BLOCK_BYTES
            if left < PART_HEAD_BYTES:
                out += b"\0" * left
                continue
            part, rest = rest[: left - PART_HEAD_BYTES], rest[left - PART_HEAD_BYTES :]
            kind = (1 if not rest else 2) if first else (4 if not rest else 3)
            out += struct.pack("<IHB", 0, len(part), kind) + part
            first = False
    return bytes(out)


FIGURES = {
    "timing_s/step": 50.0,
    "timing_s/gen": 20.0,
    "timing_s/update_actor": 12.0,
    "response_length/mean": 300,
    "prompt_length/mean": 256,
}


def run_folder(folder, name="run-20260101_101010-abc", steps=range(1, 5), **more):
    run = folder / name
    run.mkdir(parents=True)
    rows = [history(FIGURES | {"_step": step} | more) for step in steps]
    (run / "run-abc.wandb").write_bytes(wandb_log([b"\x08\x01", *rows]))
    return run


names = st.text(st.characters(codec="ascii", exclude_characters="|"), min_size=1, max_size=20)
values = st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False)
rows = st.lists(st.dictionaries(names, values, min_size=1, max_size=4), max_size=5)


@given(rows, st.booleans(), st.integers(0, 2 * BLOCK_BYTES))
def test_what_is_written_is_read_in_whatever_blocks_it_lies(tmp_path_factory, rows, typed, before):
    rows = [{**row, "_step": number} for number, row in enumerate(rows)]
    file = tmp_path_factory.mktemp("run") / "run-a.wandb"
    other = delimited(4, b"x" * before)  # of another kind, such as lines of a console
    file.write_bytes(wandb_log([other, *(history(row, typed=typed) for row in rows)]))
    assert wandb_steps(file) == [
        {name: float(value) for name, value in row.items()} for row in rows
    ]


@given(st.integers(0, 400))
def test_a_file_that_is_still_written_has_the_whole_records_before_its_end(tmp_path_factory, size):
    file = tmp_path_factory.mktemp("run") / "run-a.wandb"
    whole = wandb_log([history({"_step": step, "a": 1.5}) for step in range(9)])
    file.write_bytes(whole[:size])
    found = wandb_steps(file)
    assert found == [{"_step": float(step), "a": 1.5} for step in range(len(found))]
    assert len(found) == max(0, min(size, len(whole)) - len(HEAD)) // (
        (len(whole) - len(HEAD)) // 9
    )


def test_nested_names_not_a_number_texts_and_records_of_one_step(tmp_path):
    file = tmp_path / "run-a.wandb"
    rows = [
        {"_step": 1, "nested|a": 2, "text": "x", "yes": True},
        {"_step": 1, "b": float("nan"), "c": 3},
        {"_step": 2, "c": 4, "huge": 10**400},
    ]
    file.write_bytes(wandb_log(map(history, rows)))
    assert wandb_steps(file) == [{"_step": 1, "nested.a": 2, "c": 3}, {"_step": 2, "c": 4}]


def test_the_newest_run_of_a_folder_is_read_as_a_log(tmp_path):
    run_folder(tmp_path, "offline-run-20260101_101010-abc", **{"timing_s/gen": 9.0})
    newest = run_folder(tmp_path, "run-20260102_101010-abc")
    assert wandb_file(tmp_path) == newest / "run-abc.wandb"
    for path in (tmp_path, newest, newest / "run-abc.wandb"):
        found = read_log(path, warmup=0)
        assert (found.sheet.name, found.steps) == ("verl", 4)
        assert found.stage_seconds["generation"] == 20.0
        assert found.response_tokens == 300.0
    assert followed(tmp_path, grows=True).numbers == (1, 2, 3, 4)
    assert wandb_file(tmp_path / "gone") is None


def test_a_run_that_grows_is_looked_at_again(tmp_path):
    run = run_folder(tmp_path)
    looks = changes_of(tmp_path, lambda: pytest.fail("nothing changed"))
    next(looks)
    file = run / "run-abc.wandb"
    file.write_bytes(file.read_bytes() + wandb_log([history(FIGURES | {"_step": 5})])[len(HEAD) :])
    next(looks)
    assert followed(tmp_path, grows=True).numbers == (1, 2, 3, 4, 5)


def test_a_folder_without_a_run_is_waited_for(tmp_path):
    looks = changes_of(tmp_path, lambda: run_folder(tmp_path))
    next(looks)
    assert len(followed(tmp_path, grows=True).steps) == 4


def test_another_file_of_that_name_is_refused(tmp_path):
    Path(tmp_path, "run-a.wandb").write_bytes(b"something else")
    with pytest.raises(FileError, match="is no file of W&B's"):
        read_log(tmp_path)


def test_rows_of_one_step_that_an_export_has_apart_are_one_step(tmp_path):
    """Lengths in one row and seconds in another; a figure that differs begins another step."""
    log = tmp_path / "history.jsonl"
    seconds = {key: value for key, value in FIGURES.items() if key.startswith("timing_s")}
    lengths = {key: value for key, value in FIGURES.items() if key not in seconds}
    rows = [row | {"_step": step} for step in range(1, 5) for row in (lengths, seconds)]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = read_log(log)
    assert (found.steps, found.step_seconds, found.response_tokens) == (3, 50.0, 300)
    again = [*rows, seconds | {"_step": 4, "timing_s/step": 60.0}]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in again))
    run = followed(log)
    assert run is not None
    assert (len(run.steps), run.before_seconds) == (1, 200.0)
