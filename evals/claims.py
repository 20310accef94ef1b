"""Claims of papers as data: where each stands, what it states, and how figures of forecasts are compared; their judge."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from rlplan.results.accuracy import Claim

T = TypeVar("T")

# Two forecasts that differ by less are not told apart: reruns of a job differ by 3 % and more.
TIE_FRACTION = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Hold between which ends a figure bears a claim out; None sets no end."""

    least: float | None = None
    most: float | None = None

    def holds(self, figure: float) -> bool:
        """Tell whether a figure lies between the ends."""
        return (self.least is None or figure >= self.least) and (
            self.most is None or figure <= self.most
        )


def near(value: float, within: float) -> Bound:
    """Return the bound of a figure that lies within a fraction of a stated one."""
    return Bound(least=value * (1 - within), most=value * (1 + within))


NONE = Bound(most=0)
ALL = Bound(least=1)
# Of the largest rise from one value to the next.
FALLS = Bound(most=1 + TIE_FRACTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Hold the figures of forecasts that a claim is about, and what is said of them."""

    figures: tuple[float, ...]
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated(Generic[T]):
    """Hold a claim.

    Attributes:
        where: Section or figure that makes it.
        bounds: What each of its figures must keep to.
        measure: Returns them of what was forecast; None where nothing was.
    """

    where: str
    text: str
    bounds: tuple[Bound, ...]
    measure: Callable[[T], Measured | None]


def judged(claims: Iterable[Stated[T]], forecast: T) -> Iterator[Claim]:
    """Yield every claim of which something was forecast, marked as holding or failing."""
    for each in claims:
        found = each.measure(forecast)
        if found is None:
            continue
        holds = all(
            bound.holds(figure) for bound, figure in zip(each.bounds, found.figures, strict=True)
        )
        yield Claim(where=each.where, text=each.text, holds=holds, evidence=found.evidence)


def figure(value: float) -> Measured:
    """Return a figure that speaks for itself."""
    return Measured(figures=(value,), evidence=f"{value:.3g}")


def order(values: Sequence[float]) -> Measured:
    """Return by how many times a value is above the one before it, at most."""
    rises = [later / sooner for sooner, later in pairwise(values)]
    shown = ", ".join(f"{value:.3g}" for value in values)
    return Measured(figures=(max(rises, default=0.0),), evidence=shown)
