"""Every recipe of NeMo-RL can be written as a plan, and is forecast."""

import pytest

from rlplan.profiles.catalog import ENGINES
from rlplan.profiles.facts import load_facts
from rlplan.rules import check_plan
from rlplan.simulator.simulate import simulate
from tests.simulator.recipes import plan_of, recipes


@pytest.mark.parametrize("row", recipes(), ids=lambda row: row.recipe)
def test_a_recipe_is_valid_and_forecast(row):
    plan = plan_of(row)
    check_plan(plan, ENGINES, row.recipe)
    forecast = simulate(plan, load_facts(plan.job))
    assert forecast.iteration_seconds > 0
