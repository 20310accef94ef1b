"""Lengths over a run: from a table, from a framework's log, and files that say none."""

import pytest

from rlplan.errors import FileError
from rlplan.planner.measured.length_curves import MOST_PARTS, length_curve

VERL = "step:{step} - response_length/mean:{mean} - timing_s/step:30.0 - timing_s/gen:20.0\n"


def test_a_table_is_its_points_in_order(tmp_path):
    file = tmp_path / "curve.csv"
    file.write_text("step, response_tokens\n100, 900\n1, 300.5\n")
    assert length_curve(file) == ((1.0, 300.5), (100.0, 900.0))


def test_steps_of_a_log_are_put_together(tmp_path):
    file = tmp_path / "train.log"
    file.write_text("".join(VERL.format(step=at, mean=400 + at) for at in range(1, 91)))
    points = length_curve(file)
    assert len(points) <= MOST_PARTS
    assert points[0] == (5.5, 405.5)
    assert points[-1] == (85.5, 485.5)


def test_many_steps_of_a_table_are_put_together_as_those_of_a_log(tmp_path):
    file = tmp_path / "curve.csv"
    file.write_text(
        "\ufeffstep,response_tokens\n" + "".join(f"{at},{100 + at}\n" for at in range(1, 11))
    )
    points = length_curve(file)
    assert len(points) == MOST_PARTS
    assert points[0] == (1.0, 101.0)
    assert points[-1] == (9.5, 109.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("step,response_tokens\n1,none\n", "line 2, response_tokens"),
        ("step,response_tokens\n0,300\n", "line 2, step"),
        ("step,response_tokens\n1,300\n1,400\n", "line 3, step: is there twice"),
        ('step,response_tokens\n1,"' + "a" * 200_000, "is no table: field larger"),
        ("step,response_tokens\n", "says no lengths of responses"),
    ],
)
def test_a_table_without_lengths_is_refused(tmp_path, text, words):
    file = tmp_path / "curve.csv"
    file.write_text(text)
    with pytest.raises(FileError, match=words):
        length_curve(file)


def test_a_log_without_steps_is_refused(tmp_path):
    file = tmp_path / "train.log"
    file.write_text("nothing of interest\n")
    with pytest.raises(FileError):
        length_curve(file)
