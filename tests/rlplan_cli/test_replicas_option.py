"""`rlplan execute --replicas`: what is no schedule, and a plan that has no such replicas, is refused before anything starts; a run is compared with forecasts of numbers that it had."""

from dataclasses import replace

import pytest

from rlplan.errors import PlanError
from rlplan.profiles.facts import load_facts
from rlplan.simulator.validation import replica_rows
from rlplan_cli import running
from tests.simulator.test_validation import forecast, forecast_task, run


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("two", ("--replicas", "is no schedule of replicas", "0:1,40:3")),
        ("5:1", ("--replicas", "how many there are at first")),
        ("2", ("plan.yaml", "mode", "streaming and async", "--replicas")),
    ],
)
def test_replicas_that_cannot_come_and_go_are_refused(project, rlplan, schedule, said):
    answer = rlplan("execute", "plan.yaml", "--out", "runs/new", "--replicas", schedule)
    assert answer.code == 2
    for words in said:
        assert words in answer.err
    assert not (project / "runs" / "new").exists()


SECONDS = [9.0, 3.0, 4.0, 7.0, 2.0, 2.0, 3.0]
MEASURED = replace(run({"actor.generate": SECONDS}), replicas=(1, 1, 1, 2, 2, 2, 2))
OF_ONE = forecast(forecast_task("actor.generate", 4.2), iteration_seconds=4.2)


def test_a_run_whose_numbers_of_replicas_have_no_forecast_is_not_compared_with_another_number(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(running, "_by_replicas", lambda *_: {})
    with pytest.raises(PlanError, match="no number of replicas that it had has a forecast"):
        running.compare_run(tmp_path, OF_ONE, MEASURED, load_facts(MEASURED.plan.job))


def test_a_stored_forecast_is_compared_with_the_number_that_it_is_of(tmp_path, monkeypatch):
    """Most iterations had two replicas, of which there was no forecast."""
    stored = replica_rows(MEASURED, {1: OF_ONE})
    monkeypatch.setattr(running, "stored_replicas", lambda _: stored)
    found = running.compare_run(tmp_path, OF_ONE, MEASURED)
    assert found.iteration.measured_median_seconds == 3.5
    assert found.replicas == stored
