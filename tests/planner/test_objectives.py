import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import UnknownNameError
from rlplan.job import NO_SPECS, Specs
from rlplan.planner import objectives
from rlplan.planner.exact.score import Score
from rlplan.planner.objectives import load_objective, objective_names, objectives_words
from rlplan.planner.placements.allocations import devices_of
from rlplan.planner.requests.specs import spec_values
from rlplan.planner.search import search
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from tests.planner.brute_force import with_every_figure
from tests.simulator.plans import priced_plan

PLAN = with_every_figure(priced_plan())
FACTS = load_facts(PLAN.job, None)
FORECAST = simulate(PLAN, FACTS)
TOKENS = 8 * (16 + 16)


def bound(name, length, share=1.0, pools=2, specs=NO_SPECS):
    """Return the search's bound from shares of the plan's own seconds, of some of its pools."""
    score = Score(PLAN.job, FACTS, name, specs, devices_of(PLAN.job), None)
    used = np.zeros(1, dtype=np.int64)
    work = np.zeros(score.computing.shape[1])
    for pool in PLAN.pools[:pools]:
        used[0] += pool.gpus
        for span in FORECAST.tasks:
            if span.activity != "transfer" and span.pool == pool.name:
                moves = span.name in ("actor.generate", "transition")
                rates = (score.moving if moves else score.computing)[0] * pool.gpus
                work += rates * share * span.seconds
    return float(score.values(np.array(length * FORECAST.iteration_seconds), used, work))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("throughput", FORECAST.iteration_seconds / TOKENS),
        ("cost", FORECAST.cost_usd / TOKENS * 1e6),
        ("energy", FORECAST.energy_joules / TOKENS * 1e6),
        ("time-to-score", FORECAST.iteration_seconds / TOKENS),
    ],
)
def test_an_objective_spreads_the_iterations_figure_over_its_tokens(name, value):
    assert load_objective(name).value(FORECAST, TOKENS) == pytest.approx(value)


@pytest.mark.parametrize("name", objective_names())
def test_the_bound_of_a_plans_own_seconds_is_its_figure(name):
    assert bound(name, 1.0) == pytest.approx(load_objective(name).figure(FORECAST), rel=1e-12)


@given(
    st.sampled_from(objective_names()),
    st.floats(0, 1), st.floats(0, 1), st.integers(0, 2),
)  # fmt: skip
def test_the_bound_of_fewer_seconds_or_pools_is_never_above_the_figure(name, length, busy, pools):
    figure = load_objective(name).figure(FORECAST)
    assert bound(name, length, busy, pools) <= figure * (1 + 1e-12)


@pytest.mark.parametrize(
    ("limits", "is_kept"),
    [
        ({"iteration_seconds": 0.99}, False),
        ({"cost_usd": 0.99}, False),
        ({"usd_per_hour": 0.99}, False),
        ({"energy_joules": 0.99}, False),
        ({"gpus": 0.75}, False),
        ({"iteration_seconds": 1, "cost_usd": 1, "energy_joules": 1, "gpus": 1}, True),
    ],
)
def test_a_bound_rules_out_what_cannot_keep_a_limit(limits, is_kept):
    values = spec_values(PLAN, FORECAST)
    specs = Specs(**{name: share * values[name] for name, share in limits.items()})
    assert np.isfinite(bound("throughput", 1.0, specs=specs)) == is_kept


EMISSIONS = """
from rlplan.planner.objectives import Objective, SecondRates
from rlplan.units import ShownAs

GRAMS = 1e-4  # for a joule

OBJECTIVE = Objective(
    about="grams of CO2 per token",
    unit="grams of CO2 per million tokens",
    figure=lambda forecast: GRAMS * forecast.energy_joules,
    pool_rates=lambda rates: SecondRates(
        held=GRAMS * rates.idle_watts,
        computing=GRAMS * rates.computing_watts,
        moving=GRAMS * rates.moving_watts,
    ),
    shown_as=ShownAs(heading="g CO2/M tokens", digits=2),
)
"""


@pytest.fixture
def emissions(tmp_path, monkeypatch):
    """Add an objective in a folder of its own: one file, and nothing else lists it."""
    (tmp_path / "emissions.py").write_text(EMISSIONS)
    monkeypatch.setattr(objectives.OBJECTIVES, "_loaded", {})
    objectives.__path__.append(str(tmp_path))
    yield "emissions"
    objectives.__path__.remove(str(tmp_path))
    del sys.modules["rlplan.planner.objectives.emissions"]


@pytest.mark.full
def test_an_objective_is_one_file(emissions):
    assert emissions in objective_names()
    assert "emissions (grams of CO2 per token)" in objectives_words()
    job = resolve_job(PLAN.job, Path())
    grams, joules = (search(job, FACTS, objective=name) for name in (emissions, "energy"))
    assert grams.plans[0].plan == joules.plans[0].plan
    assert grams.gap == joules.gap
    assert bound(emissions, 1.0) == pytest.approx(1e-4 * FORECAST.energy_joules)


def test_dearer_gpus_cost_more_per_token_and_take_no_longer():
    group = replace(PLAN.job.cluster[0], usd_per_gpu_hour=34.3)
    job = replace(PLAN.job, cluster=(group,))
    dear = simulate(priced_plan(job=job), FACTS)
    assert dear.iteration_seconds == FORECAST.iteration_seconds
    assert dear.cost_usd == pytest.approx(10 * FORECAST.cost_usd)


def test_an_unknown_objective_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"'speed'.*cost, energy, throughput"):
        load_objective("speed")
