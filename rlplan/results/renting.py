"""What to rent for a run: offers on the front of time against money, those that it beats, and what was left out."""

from dataclasses import dataclass
from typing import Final

from rlplan.plan import Plan
from rlplan.results.run import RunForecast

RENTING_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalOffer:
    """Hold instances that may be rented for a run, with the run's best plan on them.

    Attributes:
        name: Of the type of instance, as its provider has it.
        gpu: Name of its GPUs' sheet.
        instances: How many of it.
        gpus: Of all instances.
        price_date: When the price was that; None is not known.
        region: Where; empty is not known.
        run: The whole run; money is what all instances cost while it runs.
        gap: By how much a step could be faster at most; 0 is proven best under the cost model.
        assumed: What of the instances is not known and taken from the GPU's usual node.
    """

    provider: str
    name: str
    gpu: str
    instances: int
    gpus: int
    price_date: str | None
    region: str
    plan: Plan
    run: RunForecast
    gap: float
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Say why instances are no offer."""

    provider: str
    name: str
    instances: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalLimits:
    """Hold what a run may take; a limit is kept where its p90 is within it.

    Attributes:
        budget_usd: Of the whole run; None for none.
        deadline_seconds: From its first step to its last; None for none.
    """

    budget_usd: float | None = None
    deadline_seconds: float | None = None

    def keeps(self, run: RunForecast) -> bool:
        """Tell whether a run's p90 is within the limits."""
        keeps_budget = self.budget_usd is None or run.interval_usd[1] <= self.budget_usd
        is_in_time = (
            self.deadline_seconds is None or run.interval_seconds[1] <= self.deadline_seconds
        )
        return keeps_budget and is_in_time


NO_LIMITS: Final = RentalLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalAnswer:
    """Hold what to rent for a run.

    Attributes:
        job: Its name.
        front: Offers within the limits of which none is beaten by another in time and money both; the fastest first,
            the cheapest last.
        chosen: Which of the front is the answer: the fastest within a budget, the cheapest within a deadline or within
            both; None where no limit was given.
        beaten: Other offers, the fastest first: slower and dearer ones, and those beyond the limits.
        left_out: Instances that the job does not fit on, or that were not looked at.
        searched: Numbers of instances of a type that were searched.
        reused: That are like others that were searched.
        pruned: That cannot beat what was found, by bounds.
        search_seconds: That it all took.
        not_counted: What money does not hold.
        notes: What else a reader should know.
    """

    version: int = RENTING_VERSION
    job: str
    steps: int
    limits: RentalLimits
    front: tuple[RentalOffer, ...]
    chosen: int | None
    beaten: tuple[RentalOffer, ...]
    left_out: tuple[LeftOut, ...]
    searched: int
    reused: int
    pruned: int
    search_seconds: float
    not_counted: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def answer(self) -> tuple[RentalOffer, ...]:
        """Return the offer that was chosen, or the front's ends where none was."""
        if self.chosen is not None:
            return (self.front[self.chosen],)
        return self.front if len(self.front) == 1 else (self.front[0], self.front[-1])
