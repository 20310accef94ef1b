import gc
import weakref
from functools import cached_property

from rlplan.profiles.tables.remembered import (
    LeastRecentlyUsed,
    forget_answers,
    kept_with,
    remembered,
)


def test_what_was_not_asked_for_the_longest_goes_first():
    kept = LeastRecentlyUsed(2)
    kept.keep("a", 1)
    kept.keep("b", 2)
    assert kept.get("a") == 1
    kept.keep("c", 3)
    assert [kept.get(key) for key in "abc"] == [1, None, 3]


def test_a_new_value_takes_the_place_of_the_one_before():
    kept = LeastRecentlyUsed(2)
    kept.keep("a", 1)
    kept.keep("b", 2)
    kept.keep("a", 3)
    kept.keep("c", 4)
    assert [kept.get(key) for key in "abc"] == [3, None, 4]


class Asked:
    """Count what is worked out."""

    def __init__(self, factor):
        self.factor, self.count = factor, 0

    @remembered
    def times(self, number):
        """Return a number times the factor."""
        self.count += 1
        return self.factor * number

    @cached_property
    def square(self):
        """Return the factor's square."""
        self.count += 1
        return self.factor**2


@kept_with(lambda *asked, **_: asked[1])
def plus(number, asked, *, twice=False):
    """Return another one that asks for so much more."""
    asked.count += 1
    return Asked(asked.factor + number * (2 if twice else 1))


def test_what_is_kept_with_an_object_is_worked_out_once_for_each_question():
    one, other = Asked(2), Asked(3)
    assert plus(1, one) is plus(1, one)
    assert plus(1, one) is not plus(1, one, twice=True)
    assert (plus(1, other).factor, plus(1, one, twice=True).factor) == (4, 4)
    assert (one.count, other.count) == (2, 1)


def test_what_is_kept_with_an_object_goes_with_it():
    gc.collect(1)
    gc.disable()  # what is new stays among the youngest, which are looked through at once
    try:
        one = Asked(2)
        gone = weakref.ref(plus(1, one))
        del one
        gc.collect(0)
    finally:
        gc.enable()
    assert gone() is None


def test_what_is_forgotten_is_worked_out_again_and_the_rest_stays():
    one = Asked(2)
    inner = plus(5, one)
    assert (one.times(3), one.square, inner.times(2)) == (6, 4, 14)
    forget_answers(one)
    assert (one.factor, one.count) == (2, 3)
    assert set(vars(one)) == {"factor", "count"}
    assert set(vars(inner)) == {"factor", "count"}  # who still holds it asks anew
    assert (one.times(3), one.square, plus(5, one).times(2)) == (6, 4, 14)
    assert one.count == 6
