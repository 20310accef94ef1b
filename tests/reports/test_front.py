"""Points of a front have colours of their own, however many there are."""

import pytest

from rlplan.reports.pictures.frontier import _colour
from rlplan.reports.pictures.picture import SERIES_COLOURS


@pytest.mark.parametrize("points", [1, 7, 8, 12, 20])
def test_no_two_points_have_the_same_colour(points):
    found = [_colour(number, points) for number in range(1, points + 1)]
    assert len(set(found)) == points
    assert all(len(each) == 7 and each.startswith("#") for each in found)
    if points <= len(SERIES_COLOURS):
        assert found == list(SERIES_COLOURS[:points])
