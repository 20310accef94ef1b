"""Which rows constants are fitted on: a row keeps its side, and half of many are on each."""

import pytest

from rlplan.evals.rows import fitted_on, row_key


def test_a_row_keeps_its_side_of_the_split_whatever_its_value_and_place():
    records = [{"tp": "8", "seconds": "1.0"}, {"seconds": "2.0", "tp": " 8"}]
    keys = {row_key(record, ["tp"]) for record in records}
    assert keys == {"8"}
    assert fitted_on("8") is fitted_on("8")


def test_the_split_takes_about_the_share_that_it_is_asked_for():
    keys = [f"row {number}" for number in range(2000)]
    assert sum(map(fitted_on, keys)) / 2000 == pytest.approx(0.5, abs=0.05)
