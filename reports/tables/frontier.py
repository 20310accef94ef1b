"""Rows of the table of a Pareto front: what each plan holds, what it is worth, and where it is best."""

from collections.abc import Mapping, Sequence

from rlplan.plan import Plan
from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import percent, signed_percent
from rlplan.results.frontier import Frontier, FrontierPoint
from rlplan.results.searched import SearchResult
from rlplan.units import ShownAs, show_seconds


def frontier_table(frontier: Frontier, shown_as: Mapping[str, ShownAs]) -> Table:
    """Return the points of a front, the best in the first objective first.

    Args:
        shown_as: By objective, how its values are shown.
    """
    headings = [f"#{shown_as[name].heading}" for name in frontier.objectives]
    return Table(
        columns=columns("##", "Pools", "#Iteration", *headings, "Best in", "#Gap"),
        rows=tuple(
            _row(number, point, shown_as) for number, point in enumerate(frontier.points, 1)
        ),
        strong_rows=frozenset(
            index for index, point in enumerate(frontier.points) if point.best_in
        ),
    )


def worth_table(search: SearchResult, shown_as: ShownAs, values: Sequence[float]) -> Table:
    """Return the plans of a search with what each is worth by an objective, best first.

    Args:
        values: Of the plans, in their order, in the objective's unit.
    """
    heading = f"#{shown_as.heading}"
    return Table(
        columns=columns("##", "Pools", "#Iteration", heading, "#Above the best"),
        rows=tuple(
            (
                str(number),
                pools_words(candidate.plan),
                show_seconds(candidate.forecast.iteration_seconds),
                shown_as.words(value),
                "best" if number == 1 else signed_percent(value / values[0] - 1),
            )
            for number, (candidate, value) in enumerate(zip(search.plans, values, strict=True), 1)
        ),
        strong_rows=frozenset({0}),
    )


def pools_words(plan: Plan) -> str:
    """Return a plan's pools for people, such as `16 h100-80gb-sxm {actor, critic} + 8 l40s {generation}`."""
    words = []
    for pool in plan.pools:
        if pool.is_host:
            continue
        words.append(f"{pool.gpus} {pool.device} {{{', '.join(plan.shown_roles(pool))}}}")
    mode = f" ({plan.mode})" if plan.flow.overlaps else ""
    return " + ".join(words) + mode


def _row(number: int, point: FrontierPoint, shown_as: Mapping[str, ShownAs]) -> tuple[str, ...]:
    return (
        str(number),
        pools_words(point.candidate.plan),
        show_seconds(point.candidate.forecast.iteration_seconds),
        *(shown_as[name].words(value) for name, value in point.values.items()),
        ", ".join(point.best_in),
        percent(max(0.0, point.gap)),
    )
