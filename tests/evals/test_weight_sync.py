"""Published seconds of weight syncs: how far forecasts are off, and which method is faster where."""

import csv
from collections import Counter
from functools import cache

from rlplan.evals.reading import HELD
from rlplan.evals.tables import weight_sync
from rlplan.results.accuracy import Row

RECORDS = list(csv.DictReader((HELD / "weight_sync.csv").open(encoding="utf-8")))
FACTOR = 1.5
# A pair whose measurements differ by less says nothing about the order of methods.
CLOSE = 1.1


@cache
def rows() -> tuple[tuple[dict[str, str], Row], ...]:
    return tuple((record, row) for record in RECORDS for row in weight_sync.rows_of(record))


def test_every_row_with_a_layout_is_within_a_factor_of_one_and_a_half():
    missed = {
        row.label: row.forecast.seconds / row.measured_seconds
        for _, row in rows()
        if row.forecast is not None
        and not 1 / FACTOR <= row.forecast.seconds / row.measured_seconds <= FACTOR
    }
    assert missed == {}


def test_rows_are_left_out_by_name_only():
    assert Counter(row.skipped for _, row in rows() if row.skipped) == {
        "neither its GPUs nor its layout is stated": 6,
        "the component 'receive' is not forecast": 3,
        "faster than the link between GPUs carries the weights once": 1,
    }


def test_more_than_a_quarter_of_the_rows_are_held_back():
    judged = [row for _, row in rows() if row.forecast is not None]
    assert sum(not row.fitted for row in judged) > len(judged) / 4


def alike(record):
    keys = ("system", "model", "gpu", "train_gpus", "rollout_gpus", "component", "note", "source")
    return tuple(record[key] if key != "note" else record[key][:3] == "not" for key in keys)


def test_methods_of_a_source_come_in_the_order_in_which_they_were_measured():
    judged = [(record, row) for record, row in rows() if row.forecast is not None]
    pairs = [
        (first, second)
        for record, first in judged
        for other, second in judged
        if alike(record) == alike(other) and record["train_layout"] == other["train_layout"]
        and second.measured_seconds > CLOSE * first.measured_seconds
    ]  # fmt: skip
    assert len(pairs) > 20
    assert not [
        (first.label, second.label)
        for first, second in pairs
        if first.forecast.seconds >= second.forecast.seconds and first.kind != second.kind
    ]


def record_of(**changes):
    found = next(each for each in RECORDS if each["system"] == "miles")
    return {**found, **changes}


def forecast(**changes) -> float:
    (row,) = weight_sync.rows_of(record_of(**changes))
    assert row.forecast is not None, row.skipped
    return row.forecast.seconds


def test_broadcast_is_as_good_as_rdma_on_one_node_and_loses_on_many():
    one = dict.fromkeys(("train_pp", "train_cp", "train_ep", "rollout_ep"), "1")
    small = one | {"model": "Qwen3-8B", "train_ranks": "4", "rollout_ranks": "4",
                   "train_tp": "2", "rollout_tp": "4"}  # fmt: skip
    large = one | {"model": "Qwen3-235B-A22B", "train_ranks": "64", "rollout_ranks": "64", "train_tp": "4",
                   "train_pp": "4", "train_ep": "16", "rollout_tp": "32", "rollout_ep": "32"}  # fmt: skip
    broadcast, rdma = {"transition": "slime-nccl"}, {"transition": "miles-p2p"}
    assert forecast(**small, **broadcast) < forecast(**small, **rdma)
    assert forecast(**large, **broadcast) > 2 * forecast(**large, **rdma)
