"""Responses under way during generation: how long the tail is."""

from dataclasses import dataclass
from typing import ClassVar

from rlplan.reports.panels import Part, Section, Subject
from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import percent
from rlplan.reports.widgets import even_ticks, share, short_scale
from rlplan.results.forecast import ResponsesUnderWay
from rlplan.units import show_seconds

# The picture's own coordinates; it is stretched to the page's width.
WIDTH, HEIGHT = 1000.0, 260.0
MOST_TICKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Hold a step curve.

    Attributes:
        path: Of an SVG, `WIDTH` wide and `HEIGHT` high.
        limit: Where the most that run at a time lie, from the top; empty where all of them do.
        x_ticks: (share from the left, words).
        y_ticks: (share from the top, words).
    """

    title: str
    path: str
    limit: str
    limit_words: str
    x_ticks: tuple[tuple[str, str], ...]
    y_ticks: tuple[tuple[str, str], ...]
    width: float = WIDTH
    height: float = HEIGHT
    template: ClassVar[str] = "curve.html.j2"


def under_way_curve(found: ResponsesUnderWay) -> Curve:
    """Return how many responses are under way over time."""
    end, most = found.seconds[-1] or 1.0, found.responses[0]
    word, unit = short_scale(end)
    steps = [f"M0 {_y(most, most)}"]
    for seconds, left in zip(found.seconds[1:], found.responses[1:], strict=True):
        steps.append(f"H{WIDTH * seconds / end:.2f}V{_y(left, most)}")
    return Curve(
        title=f"{most:,} responses, the last one ends after {end / unit:.3g} {word}",
        path="".join(steps),
        limit=share(most - found.most_running, most) if found.most_running < most else "",
        limit_words=f"at most {found.most_running:,} run at a time",
        x_ticks=tuple(
            (share(tick, end), f"{tick / unit:g} {word}")
            for tick in even_ticks(end, unit, MOST_TICKS)
        ),
        y_ticks=tuple(
            (share(most - tick, most), f"{tick:,.0f}")
            for tick in even_ticks(float(most), 1.0, MOST_TICKS)
            if tick == round(tick)
        ),
    )


def _y(left: int, most: int) -> str:
    return f"{HEIGHT * (1 - left / most):.2f}"


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
