"""The page of what to rent for a run: the answer, the front of time against money, what was left out."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlplan.reports.pages.report import Content, Fact, write_content
from rlplan.reports.panels import Part, Section
from rlplan.reports.pictures.picture import (
    MUTED,
    PAGE_WIDTH,
    SERIES_COLOURS,
    SMALL_SIZE,
    FillStyle,
    LegendEntry,
    Picture,
    drawing,
    dress_axes,
    panel_axes,
    picture,
    titled_canvas,
)
from rlplan.reports.pictures.runs import run_picture
from rlplan.reports.tables import wording
from rlplan.reports.tables.renting import (
    answer_lines,
    left_out_table,
    limits_words,
    not_counted_words,
    offer_words,
    offers_table,
    search_words,
)
from rlplan.reports.tables.run import missing_words, parts_table
from rlplan.results.renting import RentalAnswer, RentalLimits, RentalOffer
from rlplan.units import (
    DAYS_FROM_HOURS,
    HOURS_OF_A_DAY,
    hours_from_seconds,
    seconds_from_hours,
    show_duration,
    whole_usd,
)

_SIDE, _LEFT, _RIGHT = 320.0, 70.0, 14.0
# Of offers that others beat, which stand behind the front; those far beyond it would press it into a corner.
_BEHIND_TIMES = 3.0


PAGE_NAME = "rent"


def write_rent_page(out: Path, answer: RentalAnswer) -> Path:
    """Write `rent.html`, and the Markdown version, into a folder; return the HTML's path."""
    return write_content(out, rent_content(answer), PAGE_NAME)


def rent_content(answer: RentalAnswer) -> Content:
    """Return what the page says."""
    first = answer.answer[0]
    asked = limits_words(answer.limits)
    return Content(
        title=f"{answer.job}: what to rent for {answer.steps:,} steps",
        verdict="; ".join(line for line in answer_lines(answer) if not line.startswith(" ")),
        is_good=True,
        facts=(
            Fact(name="Models", value=wording.models(first.plan.job)),
            Fact(name="Work of an iteration", value=wording.workload(first.plan.job)),
            Fact(name="Asked", value=asked or "the front of time against money"),
            Fact(name="Looked at", value=search_words(answer)),
        ),
        figures=_tiles(first),
        sections=(_front(answer), _run(first), *_others(answer), _notes(answer)),
    )


def _tiles(offer: RentalOffer) -> tuple[Fact, ...]:
    run = offer.run
    late, dear = run.interval_seconds[1], run.interval_usd[1]
    return (
        Fact(name="Rent", value=offer_words(offer)),
        Fact(name="Time", value=show_duration(run.seconds)),
        Fact(name="Cost", value=whole_usd(run.usd)),
        Fact(name="At p90", value=f"{show_duration(late)}, {whole_usd(dear)}"),
    )


def _front(answer: RentalAnswer) -> Section:
    return Section(
        key="front",
        title="Time against money",
        short="Front",
        words=(
            (
                "Of each offer no other is faster and cheaper both. Bars are p10 to p90; what is grey is beaten or beyond "
                "what was asked."
            ),
        ),
        picture=renting_picture(answer),
        parts=(Part(table=offers_table(answer.front, answer.chosen)),),
    )


def _run(offer: RentalOffer) -> Section:
    return Section(
        key="run",
        title=f"The run on {offer_words(offer)}",
        short="Run",
        points=missing_words(offer.run),
        picture=run_picture(offer.run),
        parts=(Part(table=parts_table(offer.run), heading="What time and money go into"),),
    )


def _others(answer: RentalAnswer) -> list[Section]:
    parts = []
    if answer.beaten:
        beaten = offers_table(answer.beaten)
        parts.append(Part(table=beaten, heading="Slower, dearer, or beyond", is_folded=True))
    if answer.left_out:
        parts.append(Part(table=left_out_table(answer), heading="No offer", is_folded=True))
    if not parts:
        return []
    return [
        Section(key="others", title="What else was looked at", short="Others", parts=tuple(parts))
    ]


def _notes(answer: RentalAnswer) -> Section:
    points = (not_counted_words(answer), *answer.notes)
    return Section(
        key="notes", title="What these figures do not hold", short="Notes", points=points
    )


def renting_picture(answer: RentalAnswer) -> Picture:
    """Return one panel: a run's time across, its money up; offers of the front numbered as in the table."""
    title = f"What {answer.steps:,} steps of {answer.job} take and cost"
    return picture(_figure(answer, title), name="renting", title=title)


def _figure(answer: RentalAnswer, title: str) -> Figure:
    entries = [_entry(number, offer) for number, offer in enumerate(answer.front, 1)]
    longest = max(offer.run.interval_seconds[1] for offer in answer.front)
    in_days = hours_from_seconds(longest) >= DAYS_FROM_HOURS
    unit = seconds_from_hours(HOURS_OF_A_DAY if in_days else 1)
    with drawing():
        figure, bottom = titled_canvas(title, entries, _SIDE)
        room = PAGE_WIDTH - _LEFT - _RIGHT
        axes = panel_axes(figure, _LEFT, bottom, room, _SIDE, "time and money")
        _draw_beaten(axes, answer, unit)
        _draw_front(axes, answer.front, unit)
        _draw_limits(axes, answer.limits, unit)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        dress_axes(axes, "days" if in_days else "hours", "USD")
    return figure


def _entry(number: int, offer: RentalOffer) -> LegendEntry:
    worth = f"{show_duration(offer.run.seconds)}, {whole_usd(offer.run.usd)}"
    return LegendEntry(f"{number}  {offer_words(offer)}", FillStyle(_colour(number)), worth)


def _colour(number: int) -> str:
    return SERIES_COLOURS[(number - 1) % len(SERIES_COLOURS)]


def _draw_beaten(axes: Axes, answer: RentalAnswer, unit: float) -> None:
    """Draw the offers that others beat, as far as they are near the front."""
    most_seconds = _BEHIND_TIMES * max(offer.run.seconds for offer in answer.front)
    most_usd = _BEHIND_TIMES * max(offer.run.usd for offer in answer.front)
    near = [
        offer.run
        for offer in answer.beaten
        if offer.run.seconds <= most_seconds and offer.run.usd <= most_usd
    ]
    axes.plot(
        [run.seconds / unit for run in near],
        [run.usd for run in near],
        linestyle="none",
        marker="o",
        markersize=3,
        color=MUTED,
    )


def _draw_front(axes: Axes, front: Sequence[RentalOffer], unit: float) -> None:
    across, up = [o.run.seconds / unit for o in front], [o.run.usd for o in front]
    axes.plot(across, up, color=MUTED, linewidth=0.8)
    for number, offer in enumerate(front, 1):
        run, colour = offer.run, _colour(number)
        x, y = run.seconds / unit, run.usd
        low, high = (each / unit for each in run.interval_seconds)
        axes.plot([low, high], [y, y], color=colour, linewidth=1.0)
        axes.plot([x, x], list(run.interval_usd), color=colour, linewidth=1.0)
        axes.plot([x], [y], linestyle="none", marker="o", markersize=5, color=colour)
        axes.annotate(
            str(number), (x, y), xytext=(4, 4), textcoords="offset points", size=SMALL_SIZE
        )


def _draw_limits(axes: Axes, limits: RentalLimits, unit: float) -> None:
    """Draw the budget and the deadline as dashed lines, if they lie within the axes."""
    if limits.budget_usd is not None and limits.budget_usd <= axes.get_ylim()[1]:
        axes.axhline(limits.budget_usd, color=MUTED, linewidth=0.8, linestyle="--")
    deadline = limits.deadline_seconds
    if deadline is not None and deadline / unit <= axes.get_xlim()[1]:
        axes.axvline(deadline / unit, color=MUTED, linewidth=0.8, linestyle="--")
