"""Steps in logs of trainers that sync weights once in several updates."""

import json
from dataclasses import replace

import pytest

from rlplan.files.decoding import decode
from rlplan.plan import PlanDraft
from rlplan.planner.answers.completion import complete
from rlplan.planner.measured.checking import check_steps
from tests.planner.measured.test_checking import (
    expected,  # noqa: F401 -- a fixture
    ran,  # noqa: F401 -- a fixture
    steps_of,
)


def test_a_step_between_two_syncs_of_weights_is_several_updates(ran, expected, tmp_path):  # noqa: F811
    """verl's asynchronous trainers add up what the updates between two syncs took; the sync itself is one."""
    pools = [
        {"name": "train", "gpus": 4, "roles": ["actor", "reference"]},
        {"name": "rollout", "gpus": 4, "roles": ["actor"]},
    ]
    tasks = {"actor.generate": {"pool": "rollout", "tp": 1, "dp": 4, "max_running": 256}}
    text = {"job": "job.yaml", "pools": pools, "tasks": tasks, "mode": "async", "staleness": 3}
    found = {}
    for every in (1, 4):
        draft = decode(PlanDraft, text | {"sync_every": every}, "plan")
        plan = complete(draft, ran.plan.job, ran.facts)
        rows = [
            {
                key: seconds * (every if "timing_s" in key and "weights" not in key else 1)
                for key, seconds in row.items()
            }
            | {"perf/total_num_tokens": 512 * 755.0 * every}
            for row in steps_of(expected, "verl")
        ]
        log = tmp_path / f"{every}.jsonl"
        log.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        found[every] = check_steps(log, replace(ran, plan=plan))
        for row in rows:
            row["perf/total_num_tokens"] = 512 * 755.0
        log.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        of_one = check_steps(log, replace(ran, plan=plan))
        assert of_one.step.measured_seconds == pytest.approx(
            every * found[every].step.measured_seconds, rel=0.1
        )
        assert not any(note.startswith("steps:") for note in of_one.notes)
        for row in rows:
            del row["perf/total_num_tokens"]
        log.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        silent = check_steps(log, replace(ran, plan=plan))
        assert silent.step.measured_seconds == of_one.step.measured_seconds
        assert any(note.startswith("steps: taken for one update") for note in silent.notes) == (
            every > 1
        )
    once, four = found[1], found[4]
    assert four.step.measured_seconds == pytest.approx(once.step.measured_seconds)
    for one, other in zip(once.stages, four.stages, strict=True):
        assert other.measured_seconds == pytest.approx(one.measured_seconds), one.name
    assert not any(note.startswith(("tokens:", "steps:")) for note in once.notes)
    assert [note for note in four.notes if note.startswith(("tokens:", "steps:"))] == [
        "steps: one of the log is 4 updates, those between two syncs of weights; what one takes of it on average is judged"
    ]
