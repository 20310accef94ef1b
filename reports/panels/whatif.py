"""What the plan comes to where its job differs: every row is simulated anew."""

from rlplan.plan import Plan
from rlplan.reports.panels import Part, Section, Subject
from rlplan.reports.tables.plans import Table, columns, fit_words, gpus_of
from rlplan.reports.tables.wording import percent
from rlplan.results.forecast import Forecast
from rlplan.units import show_seconds, show_usd

ORDER = 45


def section(subject: Subject) -> Section | None:
    """Return the plan with other jobs, or why none was played; None where nobody asked."""
    if subject.unplayed:
        words = (f"{subject.unplayed[0].upper()}{subject.unplayed[1:]}.",)
        return Section(key="whatif", title="What if", short="What if", words=words, parts=())
    if subject.details is None or not subject.details.what_ifs:
        return None
    return Section(
        key="whatif",
        title="What if",
        short="What if",
        words=(
            (
                "The same plan simulated anew with one change of its job; where it cannot run that, and with "
                "more nodes, the best plan that a search finds, of the same plans as `rlplan search`."
            ),
        ),
        parts=(Part(table=what_if_table(subject)),),
    )


def what_if_table(subject: Subject) -> Table:
    """Return the plan as it is, then with each change."""
    rows = [_row("as it is", subject.plan, subject.forecast, "this plan")]
    for each in subject.details.what_ifs if subject.details else ():
        if each.forecast is None or each.plan is None:
            rows.append((each.change, "no plan", "", "", "", "", "", each.reason))
            continue
        how = "this plan" if each.is_same_plan else f"searched: {each.plan.placement}"
        if each.gap > 0:
            how += f", at most {percent(each.gap)} from the best"
        rows.append(_row(each.change, each.plan, each.forecast, how))
    return Table(
        columns=columns(
            "Change",
            "Fits",
            "#Step",
            "#GPUs",
            "#Tokens/s/GPU",
            "#Cost a step",
            "Plan",
            "Peak of memory",
        ),
        rows=tuple(rows),
        strong_rows=frozenset({0}),
    )


def _row(change: str, plan: Plan, forecast: Forecast, how: str) -> tuple[str, ...]:
    gpus = gpus_of(plan)
    verdict, _, peak = fit_words(forecast).partition(": ")
    return (
        change,
        verdict,
        show_seconds(forecast.iteration_seconds),
        str(gpus),
        f"{forecast.tokens_per_second / gpus:,.0f}",
        show_usd(forecast.cost_usd),
        how,
        peak,
    )
