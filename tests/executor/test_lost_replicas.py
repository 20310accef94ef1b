"""Replicas that are lost outside of what they generate: at a checkpoint, in an evaluation, and at the end of a run."""

import json
from dataclasses import replace

import pytest
import ray

from rlplan.executor.control import run as run_module
from rlplan.executor.control.checkpoints import find_checkpoint
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.control.run import REPLICAS_FILE, Saving
from rlplan.executor.execute import execute
from rlplan.replicas import read_schedule
from tests.executor.evaluated import HELD_OUT, evaluations, write_held_out
from tests.executor.test_checkpoints import assert_same, stored_weights
from tests.executor.test_coming_replicas import plan_of

pytestmark = [pytest.mark.full, pytest.mark.ray]

MOMENTS = ("_save", "_evaluate", "_measure_at_end")


def evaluated_plan():
    plan = plan_of()
    return replace(plan, job=replace(plan.job, evaluation=HELD_OUT))


def carried_out(out, folder):
    return execute(
        evaluated_plan(),
        out,
        iterations=4,
        seed=1,
        warmup=0,
        folder=folder,
        saving=Saving(every=2, retries=0),
        schedule=read_schedule("2"),
    )


@pytest.fixture(scope="module")
def undisturbed(ray_slots, tmp_path_factory):
    folder = write_held_out(tmp_path_factory.mktemp("whole"))
    carried_out(folder / "run", folder)
    return folder / "run"


def killing(monkeypatch, moment):
    """Kill a replica once, right before a run does something after its second iteration or, at its end, after the last."""
    before, killed = getattr(run_module.Run, moment), []

    def kill_first(run, groups, *given, **named):
        if not killed and run.done == (4 if moment == "_measure_at_end" else 2):
            killed.append(run.done)
            ray.kill(groups["generator"].members[1].actors[0])
        return before(run, groups, *given, **named)

    monkeypatch.setattr(run_module.Run, moment, kill_first)
    return killed


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_replica_that_is_lost_between_iterations_stops_nothing(
    ray_slots, undisturbed, tmp_path, monkeypatch, moment
):
    folder = write_held_out(tmp_path)
    killed = killing(monkeypatch, moment)
    measured = carried_out(folder / "run", folder)
    assert len(killed) == 1
    assert len(measured.trace.iterations) == len(read_metrics(folder / "run")) == 4
    found, expected = find_checkpoint(folder / "run"), find_checkpoint(undisturbed)
    assert found.state == expected.state
    assert_same(stored_weights(found), stored_weights(expected))
    for one, other in zip(evaluations(folder / "run"), evaluations(undisturbed), strict=True):
        assert {**one, "seconds": 0.0} == {**other, "seconds": 0.0}
    lost = [row["lost_replicas"] for row in read_metrics(folder / "run")]
    assert sum(lost) == (0 if moment == "_measure_at_end" else 1)
    lines = (folder / "run" / REPLICAS_FILE).read_text().splitlines() if any(lost) else []
    events = [json.loads(line) for line in lines]
    assert [each["event"] for each in events][: sum(map(bool, lost))] == ["lost"] * any(lost)
