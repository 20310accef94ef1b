"""`rlplan execute --replicas`: what is no schedule, and a plan that has no such replicas, is refused before anything starts."""

import pytest


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
