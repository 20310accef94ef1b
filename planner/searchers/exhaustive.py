"""Look at every placement, allocation and layout; simulate in the order of the bounds.

Level 1 costs every layout of every task and keeps those that no other beats in time and memory;
level 2 bounds every mapping by its critical path; level 3 simulates mappings in the order of their
bounds until the next bound is no better than the best simulated plan. The answer is then optimal
for the simulator's own objective, and the certificate (bound, gap) says so.

The certificate takes the best bound of a placement, not its best plan's: a layout that another
beats in every stage is dropped, and only transfers between pools, which the bound leaves out, could
still favour it, since whoever is ready first has the links first. The gap is at most what transfers
take, and 0 where all models share one pool.

One assumption is in the bounds: that a larger KV cache never makes generation slower. It holds where
no sequence is preempted. Where some are, it failed for 0.6 % of 1,650 pairs of cache sizes, in 6 of
30 random cases, by 0.6 % of generation's seconds in the median and 1.7 % at most
(tests/planner/test_generations.py repeats the count); a plan's lead may be wrong by so much.
"""

import math
import time
from collections.abc import Callable

from planner.explain import misfit_reason
from planner.mappings import Ranking, divisions_of, plan_of, rule_seconds
from planner.options import OptionTable, Tally
from planner.placements import Placement, placed_roles, placements, show_placement
from planner.pools import PoolTable
from profiles.facts import Facts
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import InfeasibleError
from rlplan.forecast import Forecast
from rlplan.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import Plan, TaskDraft
from rlplan.searched import Candidate, InfeasiblePlacement, SearchResult
from simulator.simulate import simulate

Progress = Callable[[int, int, str], None]


def search(
    job: Job,
    facts: Facts,
    *,
    drafts: dict[str, TaskDraft] | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Return the best plan of every placement, best first, iteration seconds being the objective.

    Args:
        job: A resolved job.
        facts: What operations cost on its devices.
        drafts: Parts of tasks' layouts that the user fixed.
        progress: Called with (done, total, what) as placements are finished.

    Raises:
        InfeasibleError: No plan fits; the message has the reason of the placement that came nearest.
    """
    started = time.perf_counter()
    tally = Tally()
    algorithm = load_algorithm(job.algorithm)
    tasks = tasks_of(algorithm, job)
    options = OptionTable(job, algorithm, tasks, facts, drafts, tally)
    table = PoolTable(options)
    rule = rule_seconds(job, tasks, facts)
    names = tuple(task.name for task in tasks)
    found: list[tuple[Plan, Forecast]] = []
    bounds: list[float] = []
    empty: list[Placement] = []
    everything = list(placements(placed_roles(job)))
    for done, placement in enumerate(everything):
        if progress:
            progress(done, len(everything), show_placement(placement))
        ranking = Ranking(divisions_of(placement, job, table, rule), table)
        best, bound = _best_of_placement(ranking, job, names, facts, tally)
        bounds.append(bound)
        if best is None:
            empty.append(placement)
        else:
            found.append(best)
    if progress:
        progress(len(everything), len(everything), "done")
    infeasible = tuple(
        InfeasiblePlacement(
            placement=show_placement(placement), reason=misfit_reason(placement, job, table)
        )
        for placement in empty
    )
    if not found:
        # A reason names the set that does not fit, and many placements share theirs.
        reasons = "; ".join(dict.fromkeys(item.reason for item in infeasible))
        raise InfeasibleError(
            f"no plan of job {job.name!r} fits its cluster, in {len(infeasible)} placements: {reasons}"
        )
    found.sort(key=lambda pair: pair[1].iteration_seconds)
    winner = found[0][1]
    bound_seconds = min(bounds)
    return SearchResult(
        plans=tuple(_candidate(plan, forecast, winner) for plan, forecast in found),
        infeasible=infeasible,
        considered=FrozenDict(tally.considered),
        pruned=FrozenDict(tally.pruned),
        bound_seconds=bound_seconds,
        gap=(winner.iteration_seconds - bound_seconds) / winner.iteration_seconds,
        search_seconds=time.perf_counter() - started,
        profile=facts.label,
    )


def _best_of_placement(
    ranking: Ranking, job: Job, names: tuple[str, ...], facts: Facts, tally: Tally
) -> tuple[tuple[Plan, Forecast] | None, float]:
    """Return a placement's best simulated plan, and seconds that no plan of it can beat."""
    best: tuple[Plan, Forecast] | None = None
    best_seconds, bound_seconds, simulated = math.inf, math.inf, 0
    tally.consider("mappings", ranking.considered)
    while (mapping := ranking.next(best_seconds)) is not None:
        plan = plan_of(mapping, job, names, "exhaustive search")
        forecast = simulate(plan, facts)
        simulated += 1
        bound_seconds = min(bound_seconds, mapping.bound_seconds)
        if not forecast.feasible:
            tally.prune("simulated memory does not fit")
        elif forecast.iteration_seconds < best_seconds:
            best, best_seconds = (plan, forecast), forecast.iteration_seconds
    tally.consider("simulated plans", simulated)
    tally.prune(
        "the critical path is no shorter than the best plan", ranking.considered - simulated
    )
    return best, min(best_seconds, bound_seconds)


def _candidate(plan: Plan, forecast: Forecast, winner: Forecast) -> Candidate:
    stages = {
        stage: seconds - winner.stage_seconds.get(stage, 0.0)
        for stage, seconds in forecast.stage_seconds.items()
    }
    return Candidate(
        plan=plan,
        forecast=forecast,
        loses_seconds=forecast.iteration_seconds - winner.iteration_seconds,
        loses_to=FrozenDict(stages),
    )
