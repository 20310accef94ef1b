"""Responses under way during generation: how long the tail is."""

from reports.panels import Part, Section, Subject
from reports.tables.plans import Table, columns
from reports.tables.wording import percent
from reports.widgets.curve import under_way_curve
from rlplan.results.plan_details import ResponsesUnderWay
from rlplan.units import show_seconds

ORDER = 25
# Of the responses: half of them, nearly all, and the tail.
SHARES = (0.5, 0.9, 0.99, 1.0)
TAIL = 0.9


def section(subject: Subject) -> Section | None:
    """Return when responses end; None where that is not known."""
    found = subject.details.under_way if subject.details else None
    if found is None:
        return None
    end = found.seconds[-1] or 1.0
    tail = 1 - ended_seconds(found, TAIL) / end
    words = f"The last {1 - TAIL:.0%} of the responses take {percent(tail)} of generation."
    if tail == 0:
        words = "Responses end together: none is handed on before the last one has ended."
    return Section(
        key="responses",
        title="Responses under way during generation",
        short="Responses",
        words=(f"{words} A usual batch: each length as often as the job's lengths have it.",),
        widgets=(under_way_curve(found),),
        parts=(Part(table=_table(found)),),
    )


def ended_seconds(found: ResponsesUnderWay, share: float) -> float:
    """Return when a share of the responses has ended, in seconds from the start of generation."""
    left = found.responses[0] * (1 - share)
    pairs = zip(found.seconds, found.responses, strict=True)
    return next(seconds for seconds, responses in pairs if responses <= left)


def _table(found: ResponsesUnderWay) -> Table:
    end = found.seconds[-1] or 1.0
    return Table(
        columns=columns("Responses that have ended", "#After", "#Share of generation"),
        rows=tuple(
            (percent(share), show_seconds(seconds), percent(seconds / end))
            for share in SHARES
            for seconds in (ended_seconds(found, share),)
        ),
    )
