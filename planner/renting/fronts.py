"""The front of time against money, and the offer that limits choose: laws that know no search."""

from collections.abc import Sequence

from rlplan.errors import InfeasibleError
from rlplan.results.renting import RentalLimits, RentalOffer
from rlplan.units import show_duration, whole_usd


def front_of(offers: Sequence[RentalOffer]) -> tuple[RentalOffer, ...]:
    """Return the offers of which none is beaten by another in time and money both: the fastest first, the cheapest last.

    Of equal ones the one with fewer instances stays, then that which comes first by name.
    """
    front: list[RentalOffer] = []
    for offer in sorted(offers, key=_order):
        if not front or offer.run.usd < front[-1].run.usd:
            front.append(offer)
    return tuple(front)


def _order(offer: RentalOffer) -> tuple[object, ...]:
    return (offer.run.seconds, offer.run.usd, offer.instances, offer.provider, offer.name)


def within(offers: Sequence[RentalOffer], limits: RentalLimits) -> tuple[RentalOffer, ...]:
    """Return the offers that keep limits at p90.

    Raises:
        InfeasibleError: None does; says which come nearest.
    """
    kept = tuple(offer for offer in offers if limits.keeps(offer.run))
    if kept or not offers:
        return kept
    raise InfeasibleError("; ".join(_nearest(offers, limits)))


def _nearest(offers: Sequence[RentalOffer], limits: RentalLimits) -> list[str]:
    """Return why no offer keeps limits, and what would be kept."""
    budget, deadline = limits.budget_usd, limits.deadline_seconds
    asked = [whole_usd(budget)] if budget is not None else []
    asked += [show_duration(deadline)] if deadline is not None else []
    lines = [f"nothing to rent keeps {' and '.join(asked)} at p90"]
    in_time = [o for o in offers if deadline is None or o.run.interval_seconds[1] <= deadline]
    affordable = [o for o in offers if budget is None or o.run.interval_usd[1] <= budget]
    if budget is not None and in_time:
        cheapest = min(in_time, key=lambda each: each.run.interval_usd[1])
        before = " by then" if deadline is not None else ""
        lines.append(f"the cheapest{before} takes {_words(cheapest)}")
    if deadline is not None and affordable:
        fastest = min(affordable, key=lambda each: each.run.interval_seconds[1])
        within_it = " for so much" if budget is not None else ""
        lines.append(f"the fastest{within_it} takes {_words(fastest)}")
    if len(lines) == 1:
        cheapest = min(offers, key=lambda each: each.run.interval_usd[1])
        fastest = min(offers, key=lambda each: each.run.interval_seconds[1])
        lines.append(f"the cheapest takes {_words(cheapest)}, the fastest {_words(fastest)}")
    return lines


def _words(offer: RentalOffer) -> str:
    usd, seconds = offer.run.interval_usd[1], offer.run.interval_seconds[1]
    what = f"{offer.instances} x {offer.name} of {offer.provider}"
    return f"up to {whole_usd(usd)} and {show_duration(seconds)} ({what})"


def chosen_of(front: Sequence[RentalOffer], limits: RentalLimits) -> int | None:
    """Return which of a front within limits is the answer; None where nothing was asked.

    The fastest within a budget, the cheapest within a deadline or within both.
    """
    if limits.deadline_seconds is not None:
        return len(front) - 1
    return 0 if limits.budget_usd is not None else None
