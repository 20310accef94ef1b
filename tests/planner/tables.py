"""A search over a written-out table of plans, for tests of what is built on searches."""

from dataclasses import replace

from rlplan.errors import InfeasibleError
from rlplan.files.frozen import FrozenDict
from rlplan.planner.objectives import load_objective
from rlplan.planner.requests.specs import violations
from rlplan.profiles.facts import load_facts
from rlplan.results.forecast import Candidate, SearchResult
from rlplan.simulator.simulate import simulate
from tests.simulator.plans import priced_plan

PLAN = priced_plan()
JOB = PLAN.job
FORECAST = simulate(PLAN, load_facts(JOB, None))
TOKENS = 8 * (16 + 16)


def candidate(seconds, usd, joules=1.0, gpus=4, peak_fraction=0.5):
    """Return a plan with these figures of an iteration."""
    first = replace(PLAN.pools[0], gpus=gpus - PLAN.pools[1].gpus)
    memory = tuple(
        replace(each, gpu_peak_bytes=round(peak_fraction * each.capacity_bytes))
        for each in FORECAST.memory
    )
    forecast = replace(
        FORECAST, iteration_seconds=seconds, cost_usd=usd, energy_joules=joules, memory=memory
    )
    plan = replace(PLAN, pools=(first, PLAN.pools[1]))
    return Candidate(plan=plan, forecast=forecast, loses_seconds=0.0, loses_to=FrozenDict())


def solver(*table):
    """Return a search that takes the best row of a table which keeps the specs."""

    def solve(name, specs):
        objective = load_objective(name)
        kept = [each for each in table if not violations(each.plan, each.forecast, specs)]
        if not kept:
            raise InfeasibleError("nothing keeps the specs")
        best = min(kept, key=lambda each: objective.value(each.forecast, TOKENS))
        return SearchResult(
            plans=(best,),
            infeasible=(),
            considered=FrozenDict(),
            pruned=FrozenDict(),
            bound_seconds=0.0,
            gap=0.0,
            search_seconds=0.0,
            profile="datasheet",
        )

    return solve
