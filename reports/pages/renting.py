"""The page of what to rent for a run: the answer, the front of time against money, what was left out."""

from pathlib import Path

from rlplan.reports.pages.report import Content, Fact, write_content
from rlplan.reports.panels import Part, Section
from rlplan.reports.pictures.renting import renting_picture
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
from rlplan.results.renting import RentalAnswer, RentalOffer
from rlplan.units import show_duration, whole_usd

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
