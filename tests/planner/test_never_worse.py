"""The search beside the systems of the field, on the examples and by every objective."""

from pathlib import Path

import pytest

from planner.baselines import baseline_names, load_baseline
from planner.objectives import load_objective, objective_names
from planner.search import search
from planner.specs import violations
from profiles.catalog import load_job
from profiles.facts import load_facts

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOBS = sorted(p.stem for p in EXAMPLES.glob("*.yaml") if not p.name.endswith(".plan.yaml"))
ROUNDING = 1e-9


@pytest.fixture(scope="module", params=JOBS)
def example(request):
    """Return an example's job and facts with the plans of the systems that fit and keep its specs."""
    job = load_job(EXAMPLES / f"{request.param}.yaml")
    facts = load_facts(job)
    systems = [load_baseline(name).best_plan(job, facts) for name in baseline_names()]
    sound = [
        each
        for each in systems
        if each.forecast is not None
        and each.forecast.feasible
        and not violations(each.plan, each.forecast, job.specs)
    ]
    return job, facts, sound


@pytest.mark.parametrize("name", objective_names())
def test_no_system_has_a_better_plan_than_the_search(example, name):
    job, facts, systems = example
    objective = load_objective(name, job)
    ours = objective.value(search(job, facts, objective=name).plans[0].forecast)
    for each in systems:
        assert ours <= objective.value(each.forecast) * (1 + ROUNDING), each.name
