"""Metrics: whole lines, also after a run was killed, and TensorBoard scalars beside them."""

import math
from contextlib import ExitStack
from pathlib import Path

import pytest
from tensorboard.summary.writer.record_writer import RecordWriter

from rlplan.errors import FileError
from rlplan.executor.control.metrics import MetricsWriter, read_metrics


def test_a_line_is_in_the_file_when_write_returns(tmp_path):
    with MetricsWriter(tmp_path / "run") as writer:
        writer.write(0, {"reward/mean": 0.5, "timing_s/actor.update": 2})
        found = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert found == [{"iteration": 0, "reward/mean": 0.5, "timing_s/actor.update": 2.0}]


def test_a_value_that_is_not_finite_comes_back_as_nan(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(0, {"loss": math.inf, "other": 1.0})
    (found,) = read_metrics(tmp_path)
    assert math.isnan(found["loss"])
    assert found["other"] == 1.0
    assert "null" in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")


def test_a_cut_last_line_is_left_out_and_goes_when_the_run_resumes(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(0, {"a": 1.0})
        writer.write(1, {"a": 2.0})
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-4])
    assert read_metrics(path) == [{"iteration": 0, "a": 1.0}]
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, {"a": 3.0})
    assert read_metrics(path) == [{"iteration": 0, "a": 1.0}, {"iteration": 1, "a": 3.0}]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 0}\n{"iterat\n{"iteration": 2}\n', encoding="utf-8")
    with pytest.raises(FileError, match="line 2"):
        read_metrics(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileError, match=r"none\.jsonl: no such file"):
        read_metrics(tmp_path / "none.jsonl")


def test_tensorboard_shows_the_same_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with MetricsWriter(tmp_path) as writer:
        for iteration in range(3):
            writer.write(iteration, {"reward/mean": iteration / 2})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [
        (0, 0.0),
        (1, 0.5),
        (2, 1.0),
    ]


def test_closing_twice_does_no_harm(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(0, {})
    writer.close()
    writer.close()


def test_a_line_that_finds_no_room_is_one_message(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(0, {"a": 1.0})
        with Path("/dev/full").open("ab", buffering=0) as full:
            writer._lines._lines, own = full, writer._lines._lines
            with pytest.raises(FileError, match="/dev/full: cannot be written: No space left"):
                writer.write(1, {"a": 2.0})
            writer._lines._lines = own
    assert read_metrics(tmp_path) == [{"iteration": 0, "a": 1.0}]


def test_curves_that_find_no_room_are_said_once_and_stop_nothing(tmp_path, logged):
    with MetricsWriter(tmp_path) as writer, ExitStack() as stack:
        writer._board.close()
        full = stack.enter_context(Path("/dev/full").open("wb", buffering=0))
        writer._board._records = RecordWriter(full)
        for iteration in range(3):
            writer.write(iteration, {"a": 1.0})
            writer._show_pending()
    assert logged == [f"{tmp_path / 'tensorboard'}: no more curves: No space left on device"]
    assert len(read_metrics(tmp_path)) == 3
