from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import InfeasibleError, UnfinishedError, UserError
from rlplan.job import NO_SPECS, Specs
from rlplan.planner.answers.best_plans import find_frontier
from rlplan.reports.tables.searches import front_words
from tests.planner.tables import JOB, TOKENS, candidate, solver


def found(*table, names=("throughput", "cost"), specs=NO_SPECS, divisions=None):
    return find_frontier(JOB, solver(*table), names, specs=specs, divisions=divisions)


def figures(front):
    return [
        (point.candidate.forecast.iteration_seconds, point.candidate.forecast.cost_usd)
        for point in front.points
    ]


def test_the_front_holds_what_nothing_beats_in_both_the_fastest_first():
    table = [
        candidate(10, 8),
        candidate(40, 2),
        candidate(20, 4),
        candidate(30, 5),  # 20 s for 4 USD beats it
        candidate(10, 9),  # as fast as the fastest, dearer
    ]
    front = found(*table)
    assert figures(front) == [(10, 8), (20, 4), (40, 2)]
    assert [point.best_in for point in front.points] == [("throughput",), (), ("cost",)]
    assert front.points[1].values == {"throughput": 20 / TOKENS, "cost": 4e6 / TOKENS}
    assert front.units["cost"] == "USD per million tokens"


def test_one_plan_that_is_best_in_everything_is_the_whole_front():
    front = found(candidate(10, 2), candidate(11, 3))
    assert figures(front) == [(10, 2)]
    assert front.points[0].best_in == ("throughput", "cost")


def test_a_front_says_how_many_of_its_searches_found_nothing_in_time():
    table = [candidate(10, 8), candidate(20, 4), candidate(40, 2)]
    whole = found(*table)
    assert (whole.unfinished, "time" in front_words(whole)) == (0, False)
    solve = solver(*table)

    def hurried(name, specs):
        if specs.cost_usd is not None and 2 < specs.cost_usd < 8:
            raise UnfinishedError("none was found in 1 s; allow more seconds")
        return solve(name, specs)

    front = find_frontier(JOB, hurried, ("throughput", "cost"), specs=NO_SPECS, divisions=3)
    assert figures(front) == [(10, 8), (40, 2)]
    assert front.unfinished == 3
    assert "3 found no plan in time: the front may lack points" in front_words(front)


def test_a_front_without_any_plan_in_time_is_none():
    def hurried(name, specs):
        raise UnfinishedError("none was found in 1 s; allow more seconds")

    with pytest.raises(UnfinishedError):
        find_frontier(JOB, hurried, ("throughput", "cost"), specs=NO_SPECS)


def test_points_keep_the_specs():
    table = [candidate(10, 8, gpus=8), candidate(20, 4), candidate(40, 2)]
    assert figures(found(*table, specs=Specs(gpus=4))) == [(20, 4), (40, 2)]
    with pytest.raises(InfeasibleError):
        found(*table, specs=Specs(gpus=3))


def test_a_third_objective_adds_points_that_only_it_favours():
    table = [candidate(10, 8, 5), candidate(40, 2, 9), candidate(20, 4, 8), candidate(25, 7, 3)]
    assert figures(found(*table)) == [(10, 8), (20, 4), (40, 2)]
    front = found(*table, names=("throughput", "cost", "energy"))
    assert figures(front) == [(10, 8), (20, 4), (25, 7), (40, 2)]
    assert front.points[2].best_in == ("energy",)


@pytest.mark.parametrize("names", [("throughput",), ("cost", "cost"), ("cost", "speed")])
def test_other_than_two_or_three_known_objectives_are_refused(names):
    with pytest.raises(UserError, match=r"throughput"):
        found(candidate(1, 1), names=names)


values = st.integers(1, 50).map(float)


@given(st.lists(st.tuples(values, values, values), min_size=1, max_size=12), st.integers(0, 12))
def test_no_row_beats_a_point_and_the_ends_are_the_single_optima(rows, divisions):
    table = [candidate(*row) for row in rows]
    for names, width in ((("throughput", "cost"), 2), (("throughput", "cost", "energy"), 3)):
        front = found(*table, names=names, divisions=min(divisions, 3 if width > 2 else 12))
        points = [
            (each.iteration_seconds, each.cost_usd, each.energy_joules)[:width]
            for each in (point.candidate.forecast for point in front.points)
        ]
        assert len(set(points)) == len(points)
        for point in points:
            for row in {row[:width] for row in rows}:
                assert row == point or any(r > p for r, p in zip(row, point, strict=True))
        for axis in range(width):
            assert min(point[axis] for point in points) == min(row[axis] for row in rows)


@given(st.lists(st.tuples(values, values), min_size=1, max_size=8))
def test_a_fine_grid_misses_nothing_that_is_a_tenth_apart(rows):
    """Between 1 and 50, 60 equal ratios are steps of 7 %: each falls between two such points."""
    table = [candidate(*row) for row in rows]
    points = set(figures(found(*table, divisions=60)))
    front = [
        one
        for one in set(rows)
        if not any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in rows)
    ]
    costs = sorted(usd for _, usd in front)
    apart = all(b / a > 1.1 for a, b in pairwise(costs))
    assert points <= set(front)
    assert not apart or points == set(front)
