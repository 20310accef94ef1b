"""What to rent in words and rows: the answer, the front of time against money, and what was left out."""

from collections.abc import Sequence

from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.run import duration_interval, missing_words, usd_interval
from rlplan.reports.tables.wording import counted
from rlplan.results.renting import RentalAnswer, RentalLimits, RentalOffer
from rlplan.units import show_duration, show_usd, whole_usd

UNDATED = "not dated"
# Where a column says so itself.
_USD = " USD"


def offer_words(offer: RentalOffer) -> str:
    """Return what is rented, such as `4 x p5.48xlarge of aws`."""
    return f"{offer.instances} x {offer.name} of {offer.provider}"


def limits_words(limits: RentalLimits) -> str:
    """Return what was asked, such as `within 20,000 USD and 5 d 0 h`; empty where nothing was."""
    asked = [] if limits.budget_usd is None else [whole_usd(limits.budget_usd)]
    asked += [] if limits.deadline_seconds is None else [show_duration(limits.deadline_seconds)]
    return f"within {' and '.join(asked)} at p90" if asked else ""


def answer_lines(answer: RentalAnswer) -> tuple[str, ...]:
    """Return what to rent, and what the run takes there."""
    if answer.chosen is not None:
        is_fastest = answer.limits.deadline_seconds is None
        ranks: tuple[str, ...] = ("fastest" if is_fastest else "cheapest",)
    else:
        ranks = ("fastest", "cheapest") if len(answer.answer) > 1 else ("fastest and cheapest",)
    asked = limits_words(answer.limits)
    lines = []
    for rank, offer in zip(ranks, answer.answer, strict=True):
        run = offer.run
        within = f", {asked}" if asked else ""
        when, money = duration_interval(run.interval_seconds), usd_interval(run.interval_usd)
        dated = offer.price_date or "a date that is not known"
        lines += [
            f"{rank}: {offer_words(offer)}{within}",
            f"  {counted(run.steps, 'step')} in {show_duration(run.seconds)} (p10 to p90: {when})",
            f"  {whole_usd(run.usd)} (p10 to p90: {money}) at {show_usd(run.usd_per_hour)} an hour, price of {dated}",
        ]
        lines += [f"  {words}" for words in missing_words(run)]
        if offer.assumed:
            lines.append(f"  assumed as on the GPU's usual node: {' and '.join(offer.assumed)}")
    return tuple(lines)


def search_words(answer: RentalAnswer) -> str:
    """Return what was looked at."""
    return (
        f"{counted(answer.searched + answer.reused + answer.pruned, 'cluster')}: {answer.searched} searched, "
        f"{answer.reused} like others, {answer.pruned} left out by bounds, in {show_duration(answer.search_seconds)}"
    )


def not_counted_words(answer: RentalAnswer) -> str:
    """Return what the money does not hold."""
    return f"not counted: {'; '.join(answer.not_counted)}"


def offers_table(offers: Sequence[RentalOffer], chosen: int | None = None) -> Table:
    """Return a row for each offer, numbered.

    Args:
        chosen: Index of the one that stands out.
    """
    return Table(
        columns=columns(
            "#No",
            "Rent",
            "GPUs",
            "#Time",
            "#p10 to p90",
            "#USD",
            "#p10 to p90",
            "#USD an hour",
            "Price of",
        ),
        rows=tuple(
            (
                str(number),
                offer_words(offer),
                f"{offer.gpus} x {offer.gpu}",
                show_duration(offer.run.seconds),
                duration_interval(offer.run.interval_seconds),
                whole_usd(offer.run.usd).removesuffix(_USD),
                usd_interval(offer.run.interval_usd).replace(_USD, ""),
                f"{offer.run.usd_per_hour:,.2f}",
                offer.price_date or UNDATED,
            )
            for number, offer in enumerate(offers, 1)
        ),
        strong_rows=frozenset() if chosen is None else frozenset({chosen}),
    )


def left_out_table(answer: RentalAnswer) -> Table:
    """Return a row for each number of instances that is no offer, with the reason."""
    return Table(
        columns=columns("Instances", "Provider", "Why not"),
        rows=tuple(
            (f"{each.instances} x {each.name}", each.provider, each.reason)
            for each in answer.left_out
        ),
    )
