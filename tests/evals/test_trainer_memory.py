"""Peak memory of a trainer against what was measured, and what its terms are made of."""

import csv
from dataclasses import replace

import pytest

from rlplan.evals.reading import HELD
from rlplan.evals.tables import trainer_memory
from rlplan.results.accuracy import Row
from rlplan.units import GIB

RECORDS = list(csv.DictReader((HELD / "trainer_memory.csv").open()))
TRAINED_WHOLE = {"Qwen/Qwen3-0.6B": "qwen3-0.6b"}


def rows(models) -> list[Row]:
    return [
        row
        for record in RECORDS
        if record["model"] in models and not record["lora_rank"]
        for row in trainer_memory.rows_of({**record, "model": models[record["model"]]})
    ]


def test_peaks_of_whole_training_are_forecast_from_what_the_software_holds():
    found = rows(TRAINED_WHOLE)
    assert [row.skipped for row in found] == [None] * 6
    errors = [abs(row.error_fraction) for row in found if row.error_fraction is not None]
    assert sorted(errors)[len(errors) // 2] < 0.08
    assert max(errors) < 0.25


def test_a_run_that_ran_out_of_memory_is_forecast_not_to_fit():
    verdicts = [(row.measured_fits, row.forecast_fits) for row in rows(TRAINED_WHOLE)]
    assert (False, False) in verdicts
    assert all(measured == forecast for measured, forecast in verdicts)


def peak(**changes):
    record = next(r for r in RECORDS if r["model"] == "Qwen/Qwen3-0.6B" and r["seq_len"] == "16384")
    (row,) = trainer_memory.rows_of({**record, "model": "qwen3-0.6b", "lora_rank": "", **changes})
    return row.forecast_bytes


def test_whole_logits_take_sixteen_bytes_an_entry_and_slack():
    """Two copies in bf16 and three in fp32, of 16,384 tokens times 151,936 entries."""
    more = peak(type="sft", seq_len="16384") - peak(type="sft", seq_len="8192")
    kept = 8192 * 1024 * 2 * (28 + 4)  # inputs of 28 layers, four rows of the loss
    assert more == pytest.approx(1.15 * (8192 * 151_936 * 16 + kept), rel=1e-6)


def test_off_loading_takes_the_inputs_of_all_layers_off_the_gpu():
    less = peak(ac="Recompute", seq_len="65536") - peak(ac="Offload", seq_len="65536")
    assert less == pytest.approx(1.15 * 65_536 * 1024 * 2 * (28 - 1 - 5), rel=1e-6)


def test_a_failure_for_another_reason_says_nothing():
    record = {**RECORDS[0], "success": "False", "error_reason": "timed out"}
    (row,) = trainer_memory.rows_of(record)
    assert row.skipped == "it failed for another reason than memory"
    assert replace(row, measured_bytes=GIB).error_fraction is None
