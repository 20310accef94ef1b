"""What is said of a peak by its share of what there is."""

from typing import Final, Literal

from rlplan.results.forecast import Forecast

Verdict = Literal["fits", "may not fit", "does not fit", "not known"]

# Peaks this near to what there is are told neither way: half of the measured peaks of trainers are further from their forecast
# (evals/held/trainer_memory.csv: 3.1 % in the median, a little more often too low than too high), so that one in four that are
# forecast this much below what there is should run out, and one in four this much above should run.
UNSURE: Final = 0.03
NEAR: Final = f"is within {UNSURE:.0%} of what there is, and half of measured peaks are further off"


def verdict_at(share: float) -> Verdict:
    """Return the verdict on a peak by its share of the capacity alone."""
    if share > 1 + UNSURE:
        return "does not fit"
    return "may not fit" if share > 1 - UNSURE else "fits"


def verdict_of_plan(forecast: Forecast) -> Verdict:
    """Return the verdict on a plan that was looked for: what does not fit is none, and its fullest GPU may be too near to what there is."""
    if not forecast.feasible:
        return "does not fit"
    shares = (each.gpu_peak_bytes / each.capacity_bytes for each in forecast.memory)
    return verdict_at(max(shares, default=0.0))
