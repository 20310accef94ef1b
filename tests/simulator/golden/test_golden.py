"""Forecasts of fixed plans against their snapshot, so that a review sees which predictions moved.

After a change of costs that is meant: `pytest tests/simulator/golden --rewrite-golden`.
"""

from pathlib import Path

import pytest

from rlplan.files.decoding import load_yaml
from rlplan.files.writing import write_yaml
from rlplan.profiles.catalog import ENGINES
from rlplan.profiles.facts import load_facts
from rlplan.rules import check_plan
from rlplan.simulator.simulate import simulate
from tests.simulator.golden.plans import PLANS

SNAPSHOT = Path(__file__).with_name("forecasts.yaml")
TOLERANCE = 1e-6


def figures_of(plan):
    """Return a forecast's figures by name."""
    forecast = simulate(plan, load_facts(plan.job))
    stages = {
        f"{stage} stage seconds": seconds for stage, seconds in forecast.stage_seconds.items()
    }
    peaks = {f"{each.pool} peak bytes": each.gpu_peak_bytes for each in forecast.memory}
    return {"iteration seconds": forecast.iteration_seconds, **stages, **peaks}


def moves_between(old, new):
    """Return in words every figure that moved, appeared or vanished."""
    moves = [f"{name}: {old[name]} is gone" for name in old if name not in new]
    for name, value in new.items():
        before = old.get(name)
        if before is None:
            moves.append(f"{name}: {value} is new")
        elif abs(value - before) > TOLERANCE * abs(before):
            change = f", {value / before - 1:+.3%}" if before else ""
            moves.append(f"{name}: {before} -> {value}{change}")
    return moves


@pytest.fixture(scope="module")
def snapshot(request):
    """Return the kept figures by plan; with `--rewrite-golden` they are renewed first."""
    if request.config.getoption("--rewrite-golden"):
        write_yaml(SNAPSHOT, {name: figures_of(make()) for name, make in PLANS.items()})
    return load_yaml(SNAPSHOT)


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_is_sound_and_fits(name):
    plan = PLANS[name]()
    check_plan(plan, ENGINES)
    assert simulate(plan, load_facts(plan.job)).feasible


@pytest.mark.parametrize("name", PLANS)
def test_the_forecast_is_the_one_that_was_kept(name, snapshot):
    moves = moves_between(snapshot[name], figures_of(PLANS[name]()))
    assert not moves, "\n".join((f"{name} moved (--rewrite-golden keeps the new figures):", *moves))


def test_the_snapshot_holds_these_plans_and_no_others(snapshot):
    assert list(snapshot) == list(PLANS)


def test_what_moved_is_told_with_old_and_new_figures():
    old = {"iteration seconds": 100.0, "p0 peak bytes": 10, "gone": 1}
    assert moves_between(old, {"iteration seconds": 101.0, "p0 peak bytes": 10, "new": 2}) == [
        "gone: 1 is gone",
        "iteration seconds: 100.0 -> 101.0, +1.000%",
        "new: 2 is new",
    ]
    assert moves_between({"a": 100.0}, {"a": 100.00001}) == []
