"""`rlplan fit-environment`: trajectories to environments, into a job, and what is refused."""

import json

import pytest
import yaml

from tests.planner.configs.test_comparing import VERL
from tests.planner.measured.test_trajectories import CHAT
from tests.rlplan_cli.test_compare_command import SAID


@pytest.fixture
def trajectories(project):
    (project / "a.jsonl").write_text(json.dumps({"messages": CHAT, "task": "swe"}) + "\n")
    return project


def test_environments_are_written_and_put_into_a_job(rlplan, trajectories):
    answer = rlplan("fit-environment", "a.jsonl", "--out", "env.yaml")
    assert answer.code == 0
    assert "4 characters each" in answer.err
    (found,) = yaml.safe_load((trajectories / "env.yaml").read_text())["environments"]
    assert found == {
        "name": "a",
        "turns": 2,
        "observation_tokens": 20,
        "step_seconds": 2.5,
        "final_step_seconds": 0.0,
    }
    assert rlplan("fit-environment", "a.jsonl", "--into", "job.yaml", "--out", "own.yaml").code == 0
    job = yaml.safe_load((trajectories / "own.yaml").read_text())
    assert job["workload"]["environments"] == [found]
    assert job["models"] == yaml.safe_load((trajectories / "job.yaml").read_text())["models"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing.jsonl",), "nothing.jsonl"),
        (("job.yaml",), "is not JSON"),
        (("a.jsonl", "--into", "job.yaml"), "--out with it"),
        (("a.jsonl", "--into", "a.jsonl", "--out", "b.yaml"), "is no job"),
        (("a.jsonl", "--by", "env_id"), "is missing in 1 of 1 trajectories"),
    ],
)
def test_mistakes_are_one_line(rlplan, trajectories, arguments, said):
    answer = rlplan("fit-environment", *arguments)
    assert answer.code == 2
    assert said in answer.err


def test_what_is_written_goes_into_a_configurations_job(rlplan, trajectories):
    assert rlplan("fit-environment", "a.jsonl", "--out", "env.yaml").code == 0
    (trajectories / "run.sh").write_text(f"python3 {VERL}\n")
    answer = rlplan("check", "run.sh", *SAID, "--environment", "env.yaml", "--out", "checked.yaml")
    assert "What environments need" in answer.out
    job = yaml.safe_load((trajectories / "checked.yaml").read_text())
    assert job["workload"]["environments"][0]["turns"] == 2
