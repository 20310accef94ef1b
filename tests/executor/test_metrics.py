"""Metrics: whole lines, also after a run was killed, and TensorBoard scalars beside them."""

import math

import pytest

from executor.control.metrics import MetricsWriter, read_metrics
from rlplan.errors import FileError


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
    with pytest.raises(FileError, match=r"none\.jsonl: cannot be read"):
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
