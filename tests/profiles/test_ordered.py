"""Distinct values and quantiles are those of numpy, to the last digit."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlplan.profiles.analytic.ordered import distinct, distinct_rows, quantile_of

whole = st.integers(-3, 3)
seconds = st.floats(0, 1e6)


@given(st.lists(whole | seconds, max_size=30))
def test_distinct_values_are_those_of_numpy(values):
    found = np.array(values, dtype=np.float64)
    assert distinct(found).tolist() == np.unique(found).tolist()


@given(st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[whole] * width), max_size=30)))
def test_distinct_rows_are_those_of_numpy(rows):
    found = np.array(rows, dtype=np.int64).reshape(len(rows), -1 if rows else 1)
    assert distinct_rows(found).tolist() == np.unique(found, axis=0).tolist()


def test_rows_without_columns_are_one():
    assert distinct_rows(np.zeros((3, 0), dtype=np.int64)).shape == (1, 0)


@given(st.lists(seconds, min_size=1, max_size=40), st.floats(0, 1))
def test_quantiles_are_those_of_numpy(values, share):
    ordered = np.sort(np.array(values))
    assert quantile_of(ordered, share) == float(np.quantile(ordered, share))
