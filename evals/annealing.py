"""Simulated annealing: random changes, judged by the simulator, the worse ones taken now and then.

The method by which ReaL maps RLHF (Mei et al. 2025, ReaL, MLSys, section 5: a Markov chain over
device meshes and layouts with a fixed budget of time). Here it is what the exact search is measured
against: same space, same simulator, no bound.

A change that makes a plan worse by the factor f is taken with the probability f^(-1/t), and the
temperature t falls by a constant factor a step or second. A plan that does not fit, or that breaks a
limit, counts as if it were worse by how far it is off.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from rlplan.errors import InfeasibleError
from rlplan.evals.neighbours import NeighbourDraws, State
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, Specs
from rlplan.plan import Plan
from rlplan.planner.objectives import load_objective
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.requests.specs import allowed_modes, violations
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Candidate, Forecast, SearchResult
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.assemble import batch_tokens

Progress = Callable[[int, int, str], None]

HOTTEST, COLDEST = 0.3, 0.003
# So much worse counts a plan that needs twice the memory that there is: beyond what the seconds of
# a job's sensible layouts differ by.
PENALTY_FACTOR = 100.0
FIRST_TRIES = 100


@dataclass(frozen=True, slots=True)
class _EvaluatedState:
    state: State
    plan: Plan
    forecast: Forecast
    worth: float
    is_sound: bool


def search(  # noqa: PLR0913 -- what every searcher takes, and this one's budget
    job: Job,
    facts: Facts,
    *,
    pinned: Pinned = NOTHING_PINNED,
    progress: Progress | None = None,
    objective: str | None = None,
    specs: Specs | None = None,
    seconds: float | None = 60.0,
    steps: int | None = None,
    seed: int = 0,
) -> SearchResult:
    """Return the best plan that a random walk met within its seconds or steps.

    The result certifies nothing: its bound is 0 and its gap 1. With steps alone, the same seed gives
    the same plan on any machine.

    Args:
        objective: What to minimise; None takes the job's.
        specs: Limits that the plan keeps; None takes the job's.
        seconds: Of the processor's time, so that a busy machine does not shorten the walk; None sets
            no such end.

    Raises:
        InfeasibleError: No plan that it met fits and keeps the limits.
    """
    assert pinned == NOTHING_PINNED, "annealing pins nothing for the user"
    assert seconds is not None or steps is not None, "a walk needs an end"
    specs = job.specs if specs is None else specs
    judge = _Judge(job, facts, objective or job.objective, specs)
    walk = NeighbourDraws(job, facts, Random(seed), allowed_modes(specs))
    clock = _Clock(seconds, steps)
    here = judge.first(walk)
    best = here
    while here is not None and best is not None and not clock.is_over:
        if progress:
            progress(round(100 * clock.share), 100, "annealing")
        temperature = HOTTEST * (COLDEST / HOTTEST) ** clock.share
        clock.step()
        state = walk.neighbour(here.state)
        if state is None or state == here.state:
            continue
        there = judge.judged(state, walk)
        if math.log(there.worth / here.worth) <= -temperature * math.log(1 - walk.random.random()):
            here = there
        if (not there.is_sound, there.worth) < (not best.is_sound, best.worth):
            best = there
    if best is None or not best.is_sound:
        raise InfeasibleError(
            f"annealing met no plan of job {job.name!r} that fits and keeps its limits, in "
            f"{clock.taken} steps"
        )
    return _result(best, clock, judge, facts)


class _Judge:
    """Say what plans are worth, each once."""

    def __init__(self, job: Job, facts: Facts, objective: str, specs: Specs) -> None:
        self.job, self.facts, self.specs = job, facts, specs
        self.objective, self.tokens = load_objective(objective), batch_tokens(job)
        self.known: dict[Plan, tuple[Forecast, float, bool]] = {}

    def first(self, walk: NeighbourDraws) -> _EvaluatedState | None:
        """Return the best of a few random plans to begin with."""
        drawn = (walk.first() for _ in range(FIRST_TRIES))
        judged = [self.judged(state, walk) for state in drawn if state is not None]
        return min(judged, key=lambda each: each.worth, default=None)

    def judged(self, state: State, walk: NeighbourDraws) -> _EvaluatedState:
        plan = walk.plan(state, "annealing")
        if plan not in self.known:
            forecast = simulate(plan, self.facts)
            factor = self._penalty(plan, forecast)
            self.known[plan] = (
                forecast,
                factor * self.objective.value(forecast, self.tokens),
                factor == 1.0,
            )
        return _EvaluatedState(state, plan, *self.known[plan])

    def _penalty(self, plan: Plan, forecast: Forecast) -> float:
        """Return by how much worse a plan counts for what it breaks; 1 if it breaks nothing."""
        excess = sum(
            max(0.0, each.gpu_peak_bytes / each.capacity_bytes - 1) for each in forecast.memory
        )
        for each in violations(plan, forecast, self.specs):
            excess += abs(each.found - each.limit) / max(abs(each.limit), 1e-9)
        return 1 + PENALTY_FACTOR * excess


class _Clock:
    """Count steps and seconds against the budget."""

    def __init__(self, seconds: float | None, steps: int | None) -> None:
        self.seconds, self.steps, self.taken = seconds, steps, 0
        self.started, self.begun = time.perf_counter(), time.process_time()

    def step(self) -> None:
        self.taken += 1

    @property
    def elapsed_seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def share(self) -> float:
        """Return how much of the budget is used, from 0 to 1."""
        shares = [0.0]
        if self.seconds is not None:
            shares.append((time.process_time() - self.begun) / self.seconds)
        if self.steps is not None:
            shares.append(self.taken / max(1, self.steps))
        return min(1.0, max(shares))

    @property
    def is_over(self) -> bool:
        return self.share >= 1


def _result(best: _EvaluatedState, clock: _Clock, judge: _Judge, facts: Facts) -> SearchResult:
    return SearchResult(
        plans=(
            Candidate(
                plan=best.plan,
                forecast=best.forecast,
                loses_seconds=0.0,
                loses_to=FrozenDict(dict.fromkeys(best.forecast.stage_seconds, 0.0)),
            ),
        ),
        infeasible=(),
        considered=FrozenDict({"steps": clock.taken, "simulated plans": len(judge.known)}),
        pruned=FrozenDict(),
        bound_seconds=0.0,
        gap=1.0,
        search_seconds=clock.elapsed_seconds,
        profile=facts.label,
    )
