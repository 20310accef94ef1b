"""The search beside the systems of the field, on the examples and by every objective."""

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from rlplan.job import TIME_TO_SCORE, Specs
from rlplan.planner.objectives import load_objective, objective_names
from rlplan.planner.search import search
from rlplan.planner.systems.baselines import baseline_names, load_baseline
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import load_facts

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOBS = sorted(p.stem for p in EXAMPLES.glob("*.yaml") if not p.name.endswith(".plan.yaml"))
CASES = list(product(JOBS, objective_names()))
ROUNDING = 1e-9


@cache
def example_of(name):
    """Return an example without its limits, its facts, and what systems make of it that fits.

    No system keeps the money of the example with several devices. One that drops responses learns from others
    than the job says, which no search does by itself.
    """
    job = load_job(EXAMPLES / f"{name}.yaml")
    job = replace(job, specs=Specs(staleness=job.specs.staleness), objective=TIME_TO_SCORE)
    facts = load_facts(job)
    found = [load_baseline(name).best_plan(job, facts) for name in baseline_names()]
    fitting = [each for each in found if each.plan and each.forecast and each.forecast.feasible]
    return job, facts, [e for e in fitting if e.plan and not e.plan.job.workload.drops_responses]


@pytest.mark.full
@pytest.mark.parametrize(("example", "name"), CASES)
def test_no_system_has_a_better_plan_than_the_search(example, name):
    job, facts, systems = example_of(example)
    objective = load_objective(name)
    ours = objective.figure(search(job, facts, objective=name).plans[0].forecast)
    assert len(systems) >= 5
    for each in systems:
        assert ours <= objective.figure(each.forecast) * (1 + ROUNDING), each.name
