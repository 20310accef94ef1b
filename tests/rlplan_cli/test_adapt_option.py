"""`rlplan execute --adapt`: the option that may stand alone."""

import pytest

from rlplan_cli.commands.execute import adapt_given


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["plan.yaml", "--adapt"], ["plan.yaml", "--adapt=moves"]),
        (["--adapt", "plan.yaml"], ["--adapt=moves", "plan.yaml"]),
        (["plan.yaml", "--adapt", "--seed", "1"], ["plan.yaml", "--adapt=moves", "--seed", "1"]),
        (["plan.yaml", "--adapt", "dry-run"], ["plan.yaml", "--adapt", "dry-run"]),
        (["plan.yaml", "--adapt=dry-run"], ["plan.yaml", "--adapt=dry-run"]),
        (["--", "--adapt"], ["--", "--adapt"]),
    ],
)
def test_adapt_may_stand_alone(words, read):
    assert adapt_given(words) == read


def test_a_word_that_says_nothing_is_refused_before_anything_starts(project, rlplan):
    answer = rlplan("execute", "plan.yaml", "--adapt=dry")
    assert answer.code == 2
    assert (
        "--adapt: says nothing; found 'dry'; allowed: nothing behind it, or dry-run" in answer.err
    )
    assert not (project / "runs").exists()
