"""Rows of the tables that say why a plan won: runners-up, what does not fit, what was considered, and fronts of plans."""

from collections.abc import Mapping, Sequence

from rlplan.plan import Plan
from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import (
    counted,
    interval,
    percent,
    pool_sizes,
    signed_percent,
    signed_seconds,
)
from rlplan.results.forecast import (
    Candidate,
    DeadlinePrice,
    Frontier,
    FrontierPoint,
    SearchResult,
    StageLoss,
    losses,
)
from rlplan.units import ShownAs, show_seconds, whole_usd


def runners_up_table(search: SearchResult) -> Table:
    """Return the best plan of every placement, best first, and what it loses to which stage."""
    best = best_of_placements(search)
    winner = best[0].forecast.iteration_seconds if best else 0.0
    return Table(
        columns=columns(
            "##", "Placement", "#Devices", "#Step", "#Slower by", "#Slower by, %", "Mainly in"
        ),
        rows=tuple(
            (
                *_candidate_cells(number, candidate),
                "best" if number == 1 else signed_seconds(candidate.loses_seconds),
                "" if number == 1 else signed_percent(candidate.loses_seconds / winner),
                "" if number == 1 else loss_words(candidate),
            )
            for number, candidate in enumerate(best, 1)
        ),
        strong_rows=frozenset({0} if best else ()),
    )


def short_runners_up_table(search: SearchResult, most: int | None = None) -> Table:
    """Return the best plan of every placement in few characters, for terminals.

    Args:
        most: How many of them, the best first; None for all.
    """
    best = best_of_placements(search)[:most]
    winner = best[0].forecast.iteration_seconds if best else 0.0
    return Table(
        columns=columns("##", "Placement", "#GPUs", "#Step", "#Slower by", "Mainly in"),
        rows=tuple(
            (
                *_candidate_cells(number, candidate),
                "best" if number == 1 else signed_percent(candidate.loses_seconds / winner),
                "" if number == 1 else main_loss_words(candidate, best[0]),
            )
            for number, candidate in enumerate(best, 1)
        ),
        strong_rows=frozenset({0} if best else ()),
    )


def _candidate_cells(number: int, candidate: Candidate) -> tuple[str, ...]:
    """Return a candidate's number, placement (with mode and age where steps overlap), devices and step."""
    plan, forecast = candidate.plan, candidate.forecast
    seconds = show_seconds(forecast.iteration_seconds)
    placement = plan.placement
    if plan.flow.overlaps:
        placement = (
            f"{placement} {schedule_words(plan)}, {interval(forecast.iteration_seconds_interval)}"
        )
    return str(number), placement, pool_sizes(plan), seconds


def schedule_words(plan: Plan) -> str:
    """Return a plan's mode and how old its weights may be, such as `async, weights up to 2 updates old`."""
    if not plan.staleness:
        return plan.mode
    age = f"{plan.staleness:g} update{'' if plan.staleness == 1 else 's'}"
    return f"{plan.mode}, weights up to {age} old"


def mode_words(
    search: SearchResult, shown_as: ShownAs | None = None, values: Sequence[float] = ()
) -> str:
    """Return a sentence on why plans whose steps overlap win, or lose, against those whose steps follow one another; empty where only one kind was found.

    Args:
        shown_as: How values of the objective are shown; None where it is time.
        values: Of the plans by another objective, in their order.
    """
    best = search.plans[0]
    overlaps = best.plan.flow.overlaps
    place = next(
        (i for i, each in enumerate(search.plans) if each.plan.flow.overlaps != overlaps), None
    )
    if place is None:
        return ""
    other = search.plans[place]
    ours, theirs = (each.forecast.iteration_seconds for each in (best, other))
    verb = "wins" if overlaps else "loses"
    mode = best.plan.mode if overlaps else other.plan.mode
    kind = "plan whose steps follow one another" if overlaps else f"plan in mode {mode}"
    if shown_as is not None:
        return (
            f"{mode} {verb} by {shown_as.unit}: the best {kind}, {other.plan.placement}, has "
            f"{shown_as.words(values[place])} where the best of all has {shown_as.words(values[0])}"
        )
    lost = main_loss_words(other, best)
    mainly = "" if lost == NOTHING else f"; mainly in {lost}"
    return (
        f"{mode} {verb}: the best {kind}, {other.plan.placement}, takes {show_seconds(theirs)}, "
        f"{signed_percent(theirs / ours - 1)}{mainly}"
    )


def why_table(search: SearchResult) -> Table:
    """Return what the best plan of every other placement loses to the winner: by stage, and to what."""
    best = best_of_placements(search)
    return Table(
        columns=columns("##", "Placement", "Stage", "#Slower by", "Because of"),
        rows=tuple(
            (
                str(number) if first else "",
                candidate.plan.placement if first else "",
                loss.stage,
                signed_seconds(loss.seconds),
                cause_words(loss),
            )
            for number, candidate in enumerate(best[1:], 2)
            for first, loss in _main_losses(losses(candidate.forecast, best[0].forecast), candidate)
        ),
    )


# A stage that moves less than this share of the whole loss is left out.
_LEAST_TOLD = 0.02


def _main_losses(
    found: tuple[StageLoss, ...], candidate: Candidate
) -> list[tuple[bool, StageLoss]]:
    """Return the stages worth telling of a plan, the first one marked."""
    least = _LEAST_TOLD * abs(candidate.loses_seconds)
    kept = [loss for loss in found if abs(loss.seconds) > least]
    return [(index == 0, loss) for index, loss in enumerate(kept)]


def cause_words(loss: StageLoss, most: int = 3) -> str:
    """Return the largest causes of a stage's loss (or gain), such as `forward +1.20 s, ...`."""
    told = [f"{name} {signed_seconds(seconds)}" for name, seconds in loss.main_causes[:most]]
    return ", ".join(told) or "many small parts"


NOTHING = "nothing"
# The objective by which less time is better.
TIME = "throughput"

# Parts of forecasts whose names say too little where they stand alone.
_CAUSES = {"software": "overhead of the sync"}


def main_loss_words(candidate: Candidate, winner: Candidate) -> str:
    """Return the stage that a plan loses most in and the largest cause of it, in few words."""
    found = losses(candidate.forecast, winner.forecast)
    if not found or found[0].seconds <= 0:
        return NOTHING
    worst = found[0]
    cause = worst.main_causes[0][0] if worst.main_causes else ""
    cause = _CAUSES.get(cause, cause)
    words = f"{worst.stage} {signed_seconds(worst.seconds)}"
    return f"{words}: {cause}" if cause else words


def best_of_placements(search: SearchResult) -> tuple[Candidate, ...]:
    """Return the best plan of every placement, best first; colocated sets have no order."""
    best: dict[tuple[tuple[str, ...], ...], Candidate] = {}
    for candidate in search.plans:
        plan = candidate.plan
        pools = [pool for pool in plan.pools if not pool.is_host]
        sets = tuple(sorted(tuple(sorted(plan.shown_roles(pool))) for pool in pools))
        best.setdefault(sets, candidate)
    return tuple(best.values())


def loss_words(candidate: Candidate) -> str:
    """Return the stages where a plan loses (or wins back) seconds, the largest loss first."""
    losses = sorted(candidate.loses_to.items(), key=lambda item: (-item[1], item[0]))
    told = [f"{stage} {signed_seconds(seconds)}" for stage, seconds in losses if seconds]
    return ", ".join(told) or "nothing"


def infeasible_table(search: SearchResult) -> Table:
    """Return the placements that have no feasible plan, each with its reason."""
    return Table(
        columns=columns("Placement", "Why no plan of it fits"),
        rows=tuple((each.placement, each.reason) for each in search.infeasible),
    )


def search_counts_table(search: SearchResult) -> Table:
    """Return what the search considered by level, and what it dropped by rule."""
    considered = [("Considered", level, f"{count:,}") for level, count in search.considered.items()]
    pruned = [("Dropped", rule, f"{count:,}") for rule, count in search.pruned.items()]
    return Table(columns=columns("What", "Which", "#Number"), rows=tuple(considered + pruned))


def search_words(search: SearchResult) -> str:
    """Return the search's certificate in words."""
    best = best_of_placements(search)
    if not best:
        return "The search found no plan that fits."
    words = [
        f"Of {counted(len(best) + len(search.infeasible), 'placement')}, {len(best)} fit.",
        f"There was no time to look at {counted(len(search.unseen), 'more placement')}."
        if search.unseen
        else "",
        _margin_words(best),
        _proof_words(search),
        f"The search took {show_seconds(search.search_seconds)}.",
    ]
    return " ".join(word for word in words if word)


def _proof_words(search: SearchResult) -> str:
    """Return how far from the optimum the best plan is: a bound of seconds where seconds are what was searched by."""
    objective = search.plans[0].plan.job.objective
    least = f"No plan of the space is faster than {show_seconds(search.bound_seconds)}"
    least = least if objective == TIME else f"Plans were searched by {objective}"
    if search.gap <= 0:
        return f"{least}: the best plan is proven to be the optimum under the cost model."
    return f"{least}: the best plan is at most {percent(search.gap)} from the optimum."


def _margin_words(best: tuple[Candidate, ...]) -> str:
    first = f"The best takes {show_seconds(best[0].forecast.iteration_seconds)}"
    if len(best) == 1 or best[0].plan.job.objective != TIME:
        return f"{first}."
    margin = best[1].loses_seconds / best[0].forecast.iteration_seconds
    return f"{first}; the best of another placement takes {percent(margin)} longer."


def frontier_table(frontier: Frontier, shown_as: Mapping[str, ShownAs]) -> Table:
    """Return the points of a front, the best in the first objective first.

    Args:
        shown_as: By objective, how its values are shown.
    """
    headings = [f"#{shown_as[name].heading}" for name in frontier.objectives]
    return Table(
        columns=columns("##", "Pools", "#Step", *headings, "Best in", "#Gap"),
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
        columns=columns("##", "Pools", "#Step", heading, "#Above the best"),
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


def unseen_words(unseen: Sequence[str]) -> str:
    """Return how many placements a search was out of time for, in a sentence; empty where it was for none."""
    if not unseen:
        return ""
    placements = counted(len(unseen), "placement")
    were = "was" if len(unseen) == 1 else "were"
    return f"{placements} {were} not looked at in time: more seconds may find better plans"


def front_words(found: Frontier) -> str:
    """Return how many searches found a front, and how many of them were out of time, in a sentence."""
    count, searches = (
        counted(len(found.points), "plan"),
        counted(found.searches, "search", "searches"),
    )
    words = f"{count} of the front, from {searches}"
    if not found.unfinished:
        return words
    return f"{words}, of which {found.unfinished} found no plan in time: the front may lack points, and more seconds may find them"


def deadline_words(found: DeadlinePrice) -> str:
    """Return what the deadline of a run costs, in a sentence."""
    within = f"{show_seconds(found.run_seconds)} and {whole_usd(found.run_usd)}"
    free = f"{show_seconds(found.free_run_seconds)} and {whole_usd(found.free_run_usd)}"
    return (
        f"deadline of {show_seconds(found.deadline_seconds)}: it costs {whole_usd(found.extra_usd)}; the cheapest run in time takes "
        f"{within}, the cheapest at all {free}"
    )
