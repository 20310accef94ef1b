"""Mean steps of runs with a long tail: one row a run, and assumptions that stay within what is published."""

import csv

import pytest

from rlplan.evals.reading import HELD, read_table
from rlplan.evals.tables import rollout_tail
from rlplan.workload import longest, mean_length

TABLE = HELD / "rollout_tail.csv"
RECORDS = list(csv.DictReader(TABLE.open()))


def test_a_run_is_one_row_of_its_mean_step():
    runs = {record["system"]: record for record in rollout_tail.merged(RECORDS)}
    assert {record["step"] for record in runs.values()} == {"40"}
    assert float(runs["veRL"]["step_time_s"]) == pytest.approx(233.185)
    assert float(runs["RLHFuse"]["step_time_s"]) == pytest.approx(130.66, abs=0.01)


def test_systems_that_work_otherwise_are_left_out_by_name():
    rows = {row.kind: row for row in read_table(TABLE)}
    assert rows["veRL"].skipped is None
    assert not rows["veRL"].unseen
    assert rows["veRL"].error_fraction == pytest.approx(0, abs=0.3)
    assert "training begins, while others still generate" in str(rows["RLHFuse"].skipped)
    assert "more responses than it keeps" in str(rows["RollPacker(Flexes)"].skipped)


def test_responses_are_those_of_the_figure_and_reach_the_maximum_in_every_step():
    (record, *_) = rollout_tail.merged(RECORDS)
    work = rollout_tail.run_plan(record).job.workload
    assert longest(work.response_tokens) == 8192
    assert mean_length(work.response_tokens) == pytest.approx(931, rel=1e-6)
    larger = {**record, "max_response": "32768", "model": "Qwen2.5-32B", "gpus": "64",
              "rollout_tp": "2", "train_tp_pp_cp": "4/1/4"}  # fmt: skip
    work = rollout_tail.run_plan(larger).job.workload
    assert longest(work.response_tokens) == 32_768 - 128
    assert mean_length(work.response_tokens) == pytest.approx(983, rel=1e-6)
