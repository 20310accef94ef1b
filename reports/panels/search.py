"""Why the search chose this plan, and what the others lose."""

from rlplan.plan import Plan
from rlplan.reports.panels import Part, Section, Subject
from rlplan.reports.tables.plans import split
from rlplan.reports.tables.searches import (
    infeasible_table,
    runners_up_table,
    search_counts_table,
    search_words,
    why_table,
)
from rlplan.reports.tables.wording import counted
from rlplan.results.forecast import SearchResult

ORDER = 50
TOP_PLACEMENTS = 5


def section(subject: Subject) -> Section | None:
    """Return the best plans of a search; None where no search is known."""
    plan, search = subject.plan, subject.search
    if search is None:
        return None
    words = [search_words(search)]
    if search.plans and not _is_winner(plan, search):
        words.append(
            "The plan of this report is not the best of this search; it was made by "
            f"{plan.made_by}."
        )
    best, others = split(runners_up_table(search), TOP_PLACEMENTS)
    parts = [
        Part(table=best, heading="The best placements, each by its best plan"),
        Part(table=others, heading=counted(len(others.rows), "more placement"), is_folded=True),
        Part(table=why_table(search), heading="What the others lose, and to what", is_folded=True),
        Part(table=infeasible_table(search), heading="Placements that do not fit", is_folded=True),
        Part(table=search_counts_table(search), heading="What was considered", is_folded=True),
    ]
    return Section(
        key="search",
        title="Why this plan won" if _is_winner(plan, search) else "What the search found",
        short="Search",
        words=tuple(words),
        parts=tuple(part for part in parts if part.table.rows),
    )


def _is_winner(plan: Plan, search: SearchResult) -> bool:
    if not search.plans:
        return False
    best = search.plans[0].plan
    return (best.pools, best.tasks, best.order, best.transition) == (
        plan.pools, plan.tasks, plan.order, plan.transition,
    )  # fmt: skip
