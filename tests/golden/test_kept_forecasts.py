"""Forecasts of random valid plans, as they were before anything was rewritten: none may move unseen."""

from tests.golden.check import forecast_moves, moves

EVERY = 20


def test_forecasts_of_random_plans_are_those_that_were_kept():
    assert not forecast_moves(EVERY)


def test_moves_are_told_with_their_place():
    old = {"a": [1.0, 2.0], "b": {"c": 1}, "warnings": ["old words"]}
    new = {"a": [1.0, 2.1], "b": {"d": 1}, "warnings": ["new words"]}
    assert sorted(moves(old, new)) == ["/a/1: 2.0 -> 2.1", "/b/c: only old", "/b/d: only new"]
    assert not list(moves({"a": 1.0}, {"a": 1.0 + 1e-12}))
