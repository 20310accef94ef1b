import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.planner.layouts.option_table import front_of_groups, front_rows

points = st.lists(st.tuples(*[st.integers(0, 6)] * 3), max_size=40)


def front(items):
    return [items[place] for place in front_rows(np.array(items).reshape(len(items), 3))]


def beats(one, other):
    return all(a <= b for a, b in zip(one, other, strict=True))


@pytest.mark.full
@given(points)
def test_every_point_is_matched_or_beaten_by_one_of_the_front(items):
    assert all(any(beats(winner, item) for winner in front(items)) for item in items)


@given(points)
def test_no_point_of_the_front_is_matched_or_beaten_by_another(items):
    kept = front(items)
    assert all(not beats(a, b) for i, a in enumerate(kept) for j, b in enumerate(kept) if i != j)


def test_of_equal_points_the_first_stays():
    assert front_rows(np.array([[1], [2], [1]])).tolist() == [0]


def test_points_of_other_groups_beat_nothing():
    keys = np.array([[1], [2], [3], [0]])
    assert front_of_groups(keys, np.array([0, 0, 1, 1])).tolist() == [0, 3]


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 40, 64, 65, 1500])
@pytest.mark.parametrize("columns", range(1, 6))
def test_the_front_of_rows_with_equal_ones_is_what_one_by_one_stays(columns, rows):
    """By whichever of the ways to compare few rows and many."""
    keys = np.random.default_rng(columns).integers(0, 3 + 2 * columns, size=(rows, columns))
    keys = keys[:, :1] // 2 + keys  # most are beaten by a few
    stays = []
    for place, row in enumerate(keys):
        rivals = np.all(keys <= row, axis=1)
        equal = np.all(keys == row, axis=1)
        if not np.any(rivals & ~equal) and np.flatnonzero(equal)[0] == place:
            stays.append(place)
    assert front_rows(keys).tolist() == stays
    assert front_rows(keys.astype(float)).tolist() == stays
