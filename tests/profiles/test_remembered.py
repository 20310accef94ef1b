from rlplan.profiles.tables.remembered import LeastRecentlyUsed


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
