"""The Pareto front over two or three objectives, by exact searches under limits (epsilon-constraint).

The ends are the optima of the single objectives. Between them, limits on all objectives but the first
run over a grid; under each the plan that is best in the first objective is searched for, and of plans
that tie in it the one that is best in the next. So every point is optimal under its limits, and none
of the front's is beaten by any plan (Haimes et al. 1971, On a bicriterion formulation of the problems
of integrated system identification and system optimization; Miettinen 1999, Nonlinear multiobjective
optimization, theorem 3.2.2, with the tie broken). Plans of the front between two grid limits may be
left out; a finer grid finds them.
"""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlplan.errors import InfeasibleError, UnknownNameError, UserError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.planner.objectives import limited_objectives, load_objective
from rlplan.results.frontier import Frontier, FrontierPoint
from rlplan.results.searched import SearchResult
from rlplan.simulator.timeline.assemble import batch_tokens
from rlplan.specs import Specs

# Searches for the best plan by an objective (its name) that keeps limits.
Solve = Callable[[str, Specs], SearchResult]
Progress = Callable[[int, int, str], None]
Limits = tuple[float, ...]

# Limits between the ends, by number of objectives; with three the grid has two dimensions.
USUAL_DIVISIONS = {2: 12, 3: 4}
ROUNDING = 1e-9


class _LimitedSearches:
    """Ask for optimal plans under limits, and remember what was found under which."""

    def __init__(self, job: Job, solve: Solve, names: tuple[str, ...], specs: Specs) -> None:
        self.solve, self.names, self.specs = solve, names, specs
        self.objectives = {name: load_objective(name) for name in names}
        self.tokens = batch_tokens(job)
        self.searches = 0
        self.found: list[tuple[Limits, FrontierPoint | None]] = []

    def best(self, first: str, limits: Limits) -> FrontierPoint | None:
        """Return the best plan by one objective under limits on all; ties by the others, in turn.

        Raises:
            InfeasibleError: Without limits, no plan fits and keeps the specs.
        """
        specs, point = _limited(self.specs, self.names, limits), None
        for name in (first, *(other for other in self.names if other != first)):
            self.searches += 1
            try:
                result = self.solve(name, specs)
            except InfeasibleError:
                if not any(map(math.isfinite, limits)):
                    raise
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
            point = limited.best(names[0], limits)
            limited.note(limits, point)
            points += [point] if point else []
    if progress:
        progress(len(grid), len(grid), "done")
    return Frontier(
        objectives=names,
        units=FrozenDict({name: each.unit for name, each in limited.objectives.items()}),
        points=_front(points, ends, names),
        searches=limited.searches,
        search_seconds=time.perf_counter() - started,
    )


def check_names(names: Sequence[str]) -> None:
    """Refuse anything but two or three different objectives.

    Raises:
        UserError: Names what is allowed.
    """
    allowed = sorted(limited_objectives().values())
    for name in names:
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
