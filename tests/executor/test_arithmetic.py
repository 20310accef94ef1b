"""Questions of arithmetic for a real model: all sums, split so that nothing leaks; the rule that judges them."""

import json
import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.data.prompts import load_prompts
from rlplan.executor.learning.rules import load_rule

FILE = Path(__file__).parents[2] / "benchmarks" / "arithmetic.py"
SCRIPT = runpy.run_path(str(FILE))


def numbers(row):
    words = row["prompt"][0]["content"].removesuffix("? Reply with the number only.").split()
    return int(words[-3]), int(words[-1])


@given(st.integers(0, 99))
def test_every_sum_is_in_one_part_only_and_its_mirror_with_it(seed):
    parts = [[numbers(row) for row in rows] for rows in SCRIPT["questions"](seed)]
    span = range(SCRIPT["LOW"], SCRIPT["HIGH"] + 1)
    assert sorted(parts[0] + parts[1]) == [(one, two) for one in span for two in span]
    for rows in parts:
        assert {(two, one) for one, two in rows} == set(rows)
    assert len({tuple(sorted(pair)) for pair in parts[1]}) == SCRIPT["HELD_OUT_PAIRS"]


def test_answers_are_sums_and_seeds_decide_the_split():
    for rows in SCRIPT["questions"]():
        assert all(row["answer"] == str(sum(numbers(row))) for row in rows)
    assert SCRIPT["questions"](1) == SCRIPT["questions"](1) != SCRIPT["questions"](2)


def test_files_are_read_as_prompts(tmp_path):
    train, held_out = SCRIPT["write_questions"](tmp_path / "new")
    for path, rows in zip((train, held_out), SCRIPT["questions"](), strict=True):
        found = [{key: row[key] for key in ("prompt", "answer")} for row in load_prompts(path)]
        assert found == rows == [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("response", "reward"),
    [("12", 1), ("7 + 5 = 12", 1), ("12 is 7 + 5", 0), ("7 + 5 = 13", 0), ("-12", 0), ("twelve", 0), ("", 0)],
)  # fmt: skip
def test_the_last_number_of_a_response_is_judged(response, reward):
    rule = load_rule(f"{FILE}:number", Path())
    assert rule("", response, {"answer": "12"}) == reward
