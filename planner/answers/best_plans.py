"""Search for what a user asks: an objective under specs, a front, or plans for the nodes that are left; and say which specs bind."""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final, TypeVar

from rlplan.errors import InfeasibleError, UnfinishedError, UnknownNameError, UserError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup, Specs
from rlplan.plan import Plan
from rlplan.planner.answers.explain import least_misfit, misfit_error
from rlplan.planner.objectives import limited_objectives, load_objective, objective_names
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.planner.requests.specs import ROUNDING, is_kept, roomy, spec_values
from rlplan.planner.search import search
from rlplan.profiles.facts import Facts
from rlplan.profiles.sheets import left_to_framework, load_framework, on_usual_nodes, sheet_of
from rlplan.results.forecast import Candidate, Frontier, FrontierPoint, SearchResult
from rlplan.simulator.timeline.assemble import batch_tokens

# The Pareto front over two or three objectives, by exact searches under limits (epsilon-constraint).
#
# The ends are the optima of the single objectives. Between them, limits on all objectives but the first
# run over a grid; under each the plan that is best in the first objective is searched for, and of plans
# that tie in it the one that is best in the next. So every point is optimal under its limits, and none
# of the front's is beaten by any plan (Haimes et al. 1971, On a bicriterion formulation of the problems
# of integrated system identification and system optimization; Miettinen 1999, Nonlinear multiobjective
# optimization, theorem 3.2.2, with the tie broken). Plans of the front between two grid limits may be
# left out; a finer grid finds them.

# Searches for the best plan by an objective (its name) that keeps limits.
Solve = Callable[[str, Specs], SearchResult]
Progress = Callable[[int, int, str], None]
Limits = tuple[float, ...]

# Limits between the ends, by number of objectives; with three the grid has two dimensions.
USUAL_DIVISIONS = {2: 12, 3: 4}


class _LimitedSearches:
    """Ask for optimal plans under limits, and remember what was found under which."""

    def __init__(self, job: Job, solve: Solve, names: tuple[str, ...], specs: Specs) -> None:
        self.solve, self.names, self.specs = solve, names, specs
        self.objectives = {name: load_objective(name) for name in names}
        self.tokens = batch_tokens(job)
        self.searches = self.unfinished = 0
        self.found: list[tuple[Limits, FrontierPoint | None]] = []

    def best(self, first: str, limits: Limits) -> FrontierPoint | None:
        """Return the best plan by one objective under limits on all; ties by the others, in turn.

        Raises:
            InfeasibleError: Without limits, no plan fits and keeps the specs.
            UnfinishedError: Without limits, none was found in time.
        """
        specs, point = _limited(self.specs, self.names, limits), None
        for name in (first, *(other for other in self.names if other != first)):
            self.searches += 1
            try:
                result = self.solve(name, specs)
            except InfeasibleError as error:
                if point is None and not any(map(math.isfinite, limits)):
                    raise
                self.unfinished += isinstance(error, UnfinishedError)
                return point
            point = self._point(result, max(result.gap, point.gap if point else 0.0))
            reached = self.objectives[name].figure(point.candidate.forecast)
            specs = _limited(specs, (name,), (reached,))
        return point

    def note(self, limits: Limits, point: FrontierPoint | None) -> None:
        """Remember what is best in the first objective under limits, or that nothing keeps them."""
        self.found.append((limits, point))

    def knows(self, limits: Limits) -> bool:
        """Tell whether what is best under looser limits keeps these too, or there was nothing."""
        for looser, point in self.found:
            if any(one < other for one, other in zip(looser, limits, strict=True)):
                continue
            reached = self.figures(point) if point else ()
            if all(one <= other for one, other in zip(reached, limits, strict=bool(point))):
                return True
        return False

    def figures(self, point: FrontierPoint) -> Limits:
        """Return a point's figures of a whole iteration, objective by objective."""
        return tuple(each.figure(point.candidate.forecast) for each in self.objectives.values())

    def _point(self, result: SearchResult, gap: float) -> FrontierPoint:
        best = result.plans[0]
        values = {
            name: each.value(best.forecast, self.tokens) for name, each in self.objectives.items()
        }
        return FrontierPoint(candidate=best, values=FrozenDict(values), best_in=(), gap=gap)


def find_frontier(
    job: Job,
    solve: Solve,
    names: Sequence[str],
    *,
    specs: Specs,
    divisions: int | None = None,
    progress: Progress | None = None,
) -> Frontier:
    """Return the front over two or three objectives, the best in the first one first.

    Args:
        solve: The exact search.
        specs: Limits that every point keeps.
        divisions: Limits to try between the ends for each objective but the first; None takes a
            usual number.
        progress: Called with (done, total, what) as limits are gone through.

    Raises:
        UserError: The names are not two or three different objectives.
        InfeasibleError: No plan fits and keeps the specs.
    """
    started = time.perf_counter()
    names = tuple(names)
    check_names(names)
    limited = _LimitedSearches(job, solve, names, specs)
    none = (math.inf,) * len(names)
    ends = {name: point for name in names if (point := limited.best(name, none))}
    limited.note(none, ends[names[0]])
    grid = _grid([limited.figures(end) for end in ends.values()], divisions)
    points = list(ends.values())
    for done, limits in enumerate(grid):
        if progress:
            progress(done, len(grid), f"{len(points)} points of the front")
        if not limited.knows(limits):
            before = limited.unfinished
            point = limited.best(names[0], limits)
            if point is not None or limited.unfinished == before:
                limited.note(limits, point)
            points += [point] if point else []
    if progress:
        progress(len(grid), len(grid), "done")
    return Frontier(
        objectives=names,
        units=FrozenDict({name: each.unit for name, each in limited.objectives.items()}),
        points=_front(points, ends, names),
        searches=limited.searches,
        unfinished=limited.unfinished,
        search_seconds=time.perf_counter() - started,
    )


def check_names(names: Sequence[str]) -> None:
    """Refuse anything but two or three different objectives.

    Raises:
        UserError: Names what is allowed.
    """
    allowed = sorted(limited_objectives().values())
    for name in names:
        if name in objective_names() and name not in allowed:
            raise UserError(
                f"no limit is set in {name}, by which a front is walked along; allowed: {', '.join(allowed)}"
            )
        if name not in allowed:
            raise UnknownNameError("objective", name, allowed)
    if len(set(names)) < len(names) or len(names) not in USUAL_DIVISIONS:
        raise UserError(
            f"a front wants two or three different objectives; found {', '.join(names)}; "
            f"allowed: {', '.join(allowed)}"
        )


def _limited(specs: Specs, names: Sequence[str], limits: Limits) -> Specs:
    """Return specs with limits on objectives, where they are tighter than what is there."""
    tighter: dict[str, Any] = {}
    spec_of = {name: spec for spec, name in limited_objectives().items()}
    for name, limit in zip(names, limits, strict=True):
        if limit < specs.given.get(spec_of[name], math.inf):
            tighter[spec_of[name]] = limit
    return replace(specs, **tighter)


def _grid(ends: Sequence[Limits], divisions: int | None) -> list[Limits]:
    """Return limits between the ends, in equal ratios, the loosest first; none on the first one."""
    steps = USUAL_DIVISIONS[len(ends)] if divisions is None else divisions
    axes = []
    for values in list(zip(*ends, strict=True))[1:]:
        low, high = min(values), max(values)
        ratio = low / high if high > 0 else 1.0
        axes.append([high * ratio ** (step / (steps + 1)) for step in range(1, steps + 1)])
    if len(axes) > 1:  # a limit on one objective alone is on the front as well
        axes = [[math.inf, *axis] for axis in axes]
    return [(math.inf, *limits) for limits in itertools.product(*axes)]


def _front(
    points: Sequence[FrontierPoint], ends: Mapping[str, FrontierPoint], names: tuple[str, ...]
) -> tuple[FrontierPoint, ...]:
    """Return the points that no other one beats, each once, with what they are best in."""
    keyed = {tuple(_rounded(point.values[name]) for name in names): point for point in points}
    kept = [point for key, point in keyed.items() if not any(_beats(each, key) for each in keyed)]
    least = {name: ends[name].values[name] for name in names}
    named = [
        replace(
            point,
            best_in=tuple(
                name for name in names if point.values[name] <= least[name] * (1 + ROUNDING)
            ),
        )
        for point in kept
    ]
    return tuple(sorted(named, key=lambda point: tuple(point.values[name] for name in names)))


def _beats(one: Limits, other: Limits) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _rounded(value: float) -> float:
    """Return a value without the digits in which equal sums may differ."""
    return float(f"{value:.9e}")


Found = TypeVar("Found")


def best_plans(
    job: Job,
    facts: Facts,
    *,
    pinned: Pinned = NOTHING_PINNED,
    seconds: float | None = None,
    progress: Progress | None = None,
    placements: int | None = None,
) -> SearchResult:
    """Return plans of a resolved job by its objective under its specs, best first.

    They leave the usual share of memory free, unless the specs say how much.

    Args:
        pinned: What the user pinned.
        seconds: When to stop with the best plan so far; None searches to the end.
        placements: Of how many, the best ones, plans are wanted; None of all.

    Raises:
        InfeasibleError: No plan fits and keeps the specs; the message says which spec binds and what
            the nearest value is that a plan can keep.
    """
    solve = solver(job, facts, seconds, pinned, progress, placements)
    best_of = solver(job, facts, seconds, pinned, progress, placements=1)

    def why_none(specs: Specs, none_fits: InfeasibleError) -> InfeasibleError:
        found = infeasible_specs_error(job, specs, best_of, none_fits)
        if found is none_fits and pinned.given:
            found = _pinned_error(job, facts, pinned, none_fits)
        return found

    return under_specs(job, lambda specs: solve(job.objective, specs), why_none)


def under_specs(
    job: Job,
    find: Callable[[Specs], Found],
    why_none: Callable[[Specs, InfeasibleError], InfeasibleError],
) -> Found:
    """Return what is found under a job's specs, with the usual share of memory free where they say nothing of it.

    Fuller plans are not taken where there are no others: a narrower search, which has those alone, might find better
    plans than a wider one. The error names the share that a plan can leave free.

    Raises:
        InfeasibleError: Nothing is found.
    """
    specs = roomy(job)
    try:
        return find(specs)
    except UnfinishedError:
        raise
    except InfeasibleError as error:
        try:
            why = why_none(specs, error)
        except UnfinishedError:  # what would fit was not found in time; that nothing does is known
            why = error
        raise why from None


def _pinned_error(
    job: Job, facts: Facts, pinned: Pinned, none_fits: InfeasibleError
) -> InfeasibleError:
    """Return the error that no plan with the pinned parts fits, with the reason and the nearest change that helps."""

    def choose(larger: Facts) -> Plan:
        specs = Specs(staleness=job.specs.staleness)
        found = search(
            job, larger, pinned=pinned, objective="throughput", specs=specs, placements=1
        )
        return found.plans[0].plan

    try:
        plan = least_misfit(choose, facts, none_fits)
    except InfeasibleError as error:
        return error
    return misfit_error(plan, facts, pinned)


def best_front(
    job: Job,
    facts: Facts,
    names: Sequence[str],
    *,
    pinned: Pinned = NOTHING_PINNED,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> Frontier:
    """Return the Pareto front of a resolved job over two or three objectives, under its specs.

    Args:
        pinned: What the user pinned.
        seconds: When to stop each of the searches with the best plan so far; None searches to the end.

    Raises:
        UserError: The names are not two or three different objectives.
        InfeasibleError: As `best_plans`.
    """
    solve = solver(job, facts, seconds, pinned, placements=1)
    return front_under_specs(job, names, solve, progress)


def front_under_specs(
    job: Job, names: Sequence[str], solve: Solve, progress: Progress | None = None
) -> Frontier:
    """Return the front of what a search finds, under a job's specs as `under_specs` has them.

    Raises:
        UserError: The names are not two or three different objectives.
        InfeasibleError: As `best_plans`.
    """
    return under_specs(
        job,
        lambda specs: find_frontier(job, solve, names, specs=specs, progress=progress),
        lambda specs, error: infeasible_specs_error(job, specs, solve, error),
    )


def solver(
    job: Job,
    facts: Facts,
    seconds: float | None,
    pinned: Pinned,
    progress: Progress | None = None,
    placements: int | None = None,
) -> Solve:
    """Return the search of a job's plans by an objective under specs, each asked for once.

    Args:
        placements: Of how many, the best ones, plans are wanted; None of all.
    """

    @cache
    def solve(objective: str, specs: Specs) -> SearchResult:
        return search(
            job,
            facts,
            pinned=pinned,
            objective=objective,
            specs=specs,
            seconds=seconds,
            progress=progress,
            placements=placements,
        )

    return solve


# How close a limit without an objective of its own is narrowed down: to this share of it.
PRECISION_FRACTION = 0.001
# Specs that every search can keep: synchronous plans are never too old.
ALWAYS_KEPT = frozenset({"staleness"})
SHOWN_DIGITS = 4
# Of limits on no objective's figure.
UNITS = {
    "gpus": "GPUs",
    "usd_per_hour": "USD/h",
    "memory_headroom_fraction": "",
    "run_seconds": "s",
}


def infeasible_specs_error(
    job: Job, specs: Specs, solve: Solve, none_fits: InfeasibleError
) -> InfeasibleError:
    """Return an error that says which specs bind and what the nearest feasible values are.

    Args:
        solve: The search that found no plan under `specs`.
        none_fits: What it said, which is the answer if no plan fits even without limits.
    """
    free = Specs(staleness=specs.staleness)
    given = [name for name in specs.given if name not in ALWAYS_KEPT]
    if not given or _best(solve, "throughput", free) is None:
        return none_fits
    lines = [_alone(name, specs, solve) for name in given]
    told = [line for line in lines if line]
    if told:
        return InfeasibleError(
            f"no plan of job {job.name!r} keeps its specs; with the others kept, "
            + " or ".join(told)
        )
    lines = [_at_best(name, specs, free, solve) for name in given]
    hard = [line for line in lines if line]
    why = "; ".join(hard) or "each can be kept by itself, but not with the others"
    return InfeasibleError(
        f"no plan of job {job.name!r} keeps its specs, not even with one of them left out: {why}"
    )


def _alone(name: str, specs: Specs, solve: Solve) -> str | None:
    """Say what a spec would have to be if only it gave way; None if that would not be enough."""
    others = replace(specs, **{name: None})
    nearest = nearest_value(name, others, solve)
    if nearest is None:
        return None
    return f"{_words(name, specs)} would have to be {show_value(name, nearest)}"


def _at_best(name: str, specs: Specs, free: Specs, solve: Solve) -> str | None:
    """Say what a spec can be at best if it is the only one; None if it can be kept."""
    nearest = nearest_value(name, free, solve)
    if nearest is None or is_kept(name, specs.given[name], nearest):
        return None
    return f"{_words(name, specs)}, where no plan at all reaches beyond {show_value(name, nearest)}"


def nearest_value(name: str, others: Specs, solve: Solve) -> float | None:
    """Return the best value of a spec that plans which keep the others have; None if there are none.

    Exact where the spec bounds an objective, and for GPUs; to a part in a thousand elsewhere.
    """
    if name in limited_objectives():
        best = _best(solve, limited_objectives()[name], others)
        return None if best is None else _value(best, name)
    best = _best(solve, "cost" if name == "usd_per_hour" else "throughput", others)
    if best is None:
        return None
    reached = _value(best, name)
    if name == "run_seconds":  # the fastest iterations make the shortest run
        return reached
    if name == "memory_headroom_fraction":
        return _highest_headroom(reached, others, solve)
    return _lowest(name, reached, others, solve)


def _lowest(name: str, reached: float, others: Specs, solve: Solve) -> float:
    """Return the lowest limit that a plan keeps, by halving what lies between 0 and a known one."""
    low, whole = 0.0, name == "gpus"
    while reached - low > (1 if whole else PRECISION_FRACTION * reached):
        middle = (low + reached) // 2 if whole else (low + reached) / 2
        best = _best_under(name, int(middle) if whole else middle, others, solve)
        if best is None:
            low = middle
        else:
            reached = _value(best, name)
    return reached


def _highest_headroom(reached: float, others: Specs, solve: Solve) -> float:
    low, high = max(0.0, reached), 1.0
    while high - low > PRECISION_FRACTION:
        middle = (low + high) / 2
        best = _best_under("memory_headroom_fraction", middle, others, solve)
        if best is None:
            high = middle
        else:
            low = _value(best, "memory_headroom_fraction")
    return low


def _best_under(name: str, limit: float, others: Specs, solve: Solve) -> Candidate | None:
    changes: dict[str, Any] = {name: limit}
    return _best(solve, "throughput", replace(others, **changes))


def _best(solve: Solve, objective: str, specs: Specs) -> Candidate | None:
    try:
        return solve(objective, specs).plans[0]
    except UnfinishedError:
        raise
    except InfeasibleError:
        return None


def _value(best: Candidate, name: str) -> float:
    return spec_values(best.plan, best.forecast)[name]


def _words(name: str, specs: Specs) -> str:
    side = "at least" if name == "memory_headroom_fraction" else "at most"
    return f"specs.{name} ({side} {show_value(name, specs.given[name])})"


def show_value(name: str, value: float) -> str:
    """Return a spec's value for people, with its unit, rounded to the side on which it is kept."""
    if value > 0 and name != "gpus":
        step = 10 ** (math.floor(math.log10(value)) - SHOWN_DIGITS + 1)
        if name == "memory_headroom_fraction":
            value = math.floor(value / step * (1 + ROUNDING)) * step
        else:
            value = math.ceil(value / step * (1 - ROUNDING)) * step
    objective = limited_objectives().get(name)
    unit = load_objective(objective).limit_unit if objective else UNITS[name]
    return f"{value:,.{SHOWN_DIGITS}g} {unit}".strip()


# The nodes wait meanwhile: then the best plan so far is taken.
SEARCH_SECONDS: Final = 60.0


def plans_on(plan: Plan, groups: tuple[NodeGroup, ...], facts: Facts) -> Iterator[Plan]:
    """Yield plans of the same job on other nodes, the best by its objective under its specs first.

    Iterations follow one another as they did, and the same engines train and generate: what a checkpoint of the
    run holds goes on in any of them.

    Args:
        groups: Those of the plan's job of which nodes are there, with how many.

    Raises:
        InfeasibleError: None fits, or keeps the specs.
    """
    asked = AskedSchedules(modes=(plan.mode,), in_flight=plan.in_flight)
    if plan.flow.is_endless:
        asked = replace(asked, staleness=plan.staleness, sync_every=plan.sync_every)
    found = best_plans(
        _job_on(plan, groups), facts, pinned=Pinned(asked=asked), seconds=SEARCH_SECONDS
    )
    for each in found.plans:
        yield each.plan


def _job_on(plan: Plan, groups: tuple[NodeGroup, ...]) -> Job:
    """Return the plan's job with other nodes; domains of a fast link that it did not name are found anew."""
    job = plan.job
    kept = load_framework(job.framework).keeps_domains
    left, cluster = list(groups), []
    for group, bare in zip(job.cluster, left_to_framework(job), strict=True):
        if left and replace(left[0], nodes=group.nodes) == group:
            there = replace(bare, nodes=left.pop(0).nodes)
            cluster.append(on_usual_nodes(there, sheet_of(job, group.gpu), keeps_domains=kept))
    assert not left, "groups of the job's cluster, in its order"
    engines = replace(
        job.engines,
        train=plan.tasks["actor.update"].engine,
        generate=plan.tasks["actor.generate"].engine,
    )
    return replace(job, cluster=tuple(cluster), engines=engines)
