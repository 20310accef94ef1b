from hypothesis import given
from hypothesis import strategies as st

from planner.pareto import front

points = st.lists(st.tuples(*[st.integers(0, 6)] * 3), max_size=40)


def beats(one, other):
    return all(a <= b for a, b in zip(one, other, strict=True))


@given(points)
def test_every_point_is_matched_or_beaten_by_one_of_the_front(items):
    kept = front(items, lambda item: item)
    assert all(any(beats(winner, item) for winner in kept) for item in items)


@given(points)
def test_no_point_of_the_front_is_matched_or_beaten_by_another(items):
    kept = front(items, lambda item: item)
    assert all(not beats(a, b) for i, a in enumerate(kept) for j, b in enumerate(kept) if i != j)


def test_of_equal_points_the_first_stays():
    assert front(["b1", "a2", "c1"], lambda item: (int(item[1]),)) == ["b1"]
