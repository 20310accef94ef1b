from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.requests.objectives import load_objective, objective_names
from profiles.facts import load_facts
from rlplan.errors import UnknownNameError
from simulator.simulate import simulate
from simulator.timeline.expenses import PoolLoad, rates_of
from tests.simulator.plans import priced_plan

PLAN = priced_plan()
FACTS = load_facts(PLAN.job, None)
FORECAST = simulate(PLAN, FACTS)
TOKENS = 8 * (16 + 16)


def loads(share):
    """Return the plan's loads from its own forecast, scaled: a bound when `share` is at most 1."""
    computing, moving = dict.fromkeys(("p0", "p1"), 0.0), dict.fromkeys(("p0", "p1"), 0.0)
    for span in FORECAST.tasks:
        if span.activity != "transfer":
            is_moving = span.name in ("actor.generate", "transition")
            (moving if is_moving else computing)[span.pool] += share * span.seconds
    return [
        PoolLoad(rates, computing[name], moving[name])
        for name, rates in rates_of(PLAN, FACTS).items()
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("throughput", FORECAST.iteration_seconds / TOKENS),
        ("cost", FORECAST.cost_usd / TOKENS * 1e6),
        ("energy", FORECAST.energy_joules / TOKENS * 1e6),
    ],
)
def test_an_objective_spreads_the_iterations_figure_over_its_tokens(name, value):
    assert load_objective(name, PLAN.job).value(FORECAST) == pytest.approx(value)


@pytest.mark.parametrize("name", objective_names())
def test_the_bound_of_a_plans_own_seconds_is_its_value(name):
    objective = load_objective(name, PLAN.job)
    bound = objective.bound(FORECAST.iteration_seconds, loads(1.0))
    assert bound == pytest.approx(objective.value(FORECAST), rel=1e-12)


@given(
    st.sampled_from(objective_names()),
    st.floats(0, 1), st.floats(0, 1), st.integers(0, 2),
)  # fmt: skip
def test_the_bound_of_fewer_seconds_or_pools_is_never_above_the_value(name, length, busy, pools):
    objective = load_objective(name, PLAN.job)
    bound = objective.bound(length * FORECAST.iteration_seconds, loads(busy)[:pools])
    assert bound <= objective.value(FORECAST) * (1 + 1e-12)


def test_dearer_gpus_cost_more_per_token_and_take_no_longer():
    group = replace(PLAN.job.cluster[0], usd_per_gpu_hour=34.3)
    job = replace(PLAN.job, cluster=(group,))
    dear = simulate(priced_plan(job=job), FACTS)
    assert dear.iteration_seconds == FORECAST.iteration_seconds
    assert dear.cost_usd == pytest.approx(10 * FORECAST.cost_usd)


def test_an_unknown_objective_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"'speed'.*cost, energy, throughput"):
        load_objective("speed", PLAN.job)
