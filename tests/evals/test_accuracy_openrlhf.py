"""OpenRLHF's own benchmark: experience and training of each way to run the job, from GPUs by role."""

import pytest

from rlplan.evals.reading import held_tables, read_table
from rlplan.evals.tables import openrlhf_a800
from rlplan.planner.measured.reading import load_table

TABLE, MORE = (
    next(path for path in held_tables() if path.stem == name)
    for name in ("openrlhf_a800", "openrlhf_a800_more")
)


def rows(table=TABLE):
    return {row.label: row for row in read_table(table)}


def records(table):
    return load_table(table)[1]


def test_every_record_has_experience_and_training():
    found = rows()
    assert len(found) == 12
    assert sum(row.forecast is None for row in found.values()) == 3
    experience = found["DS-Chat w/o offload (colocated) 7B, make experience"]
    assert experience.measured_seconds == 975.36
    assert found["DS-Chat w/ offload (colocated) 7B, train"].skipped.startswith("weights lie on")


def test_training_steps_on_the_hosts_as_every_script_of_the_benchmark_has_it():
    """13B on two GPUs a model fits in no other way; nothing was fitted to these rows."""
    found = rows()
    for label in ("OpenRLHF ray 7B", "OpenRLHF ray+vLLM 7B", "OpenRLHF (colocated) 7B"):
        assert abs(found[f"{label}, train"].error_fraction) < 0.15
    more = rows(MORE)
    for label in ("OpenRLHF ray 13B", "OpenRLHF ray+vLLM 13B"):
        assert abs(more[f"{label}, train"].error_fraction) < 0.15
    for row in (found["OpenRLHF ray+vLLM 34B, train"], more["OpenRLHF ray+vLLM 70B, train"]):
        assert -0.3 < row.error_fraction < 0


def test_a_rank_waits_for_its_own_micro_batches_where_it_holds_whole_weights():
    """Two ranks share one GPU of the reference: each waits for half of what that one takes for all."""
    record = {row["model"]: row for row in records(MORE) if row["method"] == "OpenRLHF ray+vLLM"}
    for model, share in {"13B": 1 / 2, "70B": 1}.items():
        forecast = openrlhf_a800.forecast_of(record[model])
        seconds = forecast.stage_seconds
        experience, _ = openrlhf_a800.rows_of(record[model])
        assert experience.forecast.seconds == pytest.approx(
            seconds["generation"] + seconds["transition"] + share * seconds["preparation"]
        )


def test_rows_that_constants_were_fitted_on_are_met_and_marked():
    fitted = [row for row in rows().values() if row.fitted and row.forecast is not None]
    assert len(fitted) == 3
    assert all(abs(row.error_fraction) < 0.08 for row in fitted)


def test_whole_iterations_of_openrlhf_are_within_a_quarter():
    """Experience is forecast too long, training of the larger models too short."""
    for size, table in {"7B": TABLE, "34B": TABLE, "13B": MORE, "70B": MORE}.items():
        parts = [
            row
            for label, row in rows(table).items()
            if label.startswith(f"OpenRLHF ray+vLLM {size}")
        ]
        assert not any(row.fitted for row in parts)
        forecast = sum(row.forecast.seconds for row in parts)
        measured = sum(row.measured_seconds for row in parts)
        assert abs(forecast - measured) < 0.25 * measured
