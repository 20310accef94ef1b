"""How full a GPU or a host may be before a verdict is no plain yes."""

from typing import Final, Literal

from rlplan.planner.configs.proposing.changes import GENERATE
from rlplan.planner.requests.specs import USUAL_HEADROOM
from rlplan.simulator.timeline.pool_memory import TRANSITION

Verdict = Literal["fits", "may not fit", "does not fit", "not known"]

# Peaks this near to what there is are told neither way: half of the measured peaks of trainers are further from their forecast
# (evals/held/trainer_memory.csv: 3.1 % in the median, a little more often too low than too high), so that one in four that are
# forecast this much below what there is should run out, and one in four this much above should run.
UNSURE: Final = 0.03
# An engine that wakes beside trainers fills its share, and what their allocators keep is known least: where less than
# what searches leave free is left, seven of ten ran out of those that were looked at first, and twelve of all thirty
# (docs/memory.md, verdict).
LEFT_BESIDE_ENGINE: Final = USUAL_HEADROOM


def verdict_at(share: float) -> Verdict:
    """Return the verdict on a peak by its share of the capacity alone."""
    if share > 1 + UNSURE:
        return "does not fit"
    return "may not fit" if share > 1 - UNSURE else "fits"


def wakes_beside_trainers(during: str, moments: set[str]) -> bool:
    """Tell whether an engine fills its share at a moment, on a GPU where others train or score at other moments."""
    return during == GENERATE and not moments <= {GENERATE, TRANSITION}


def sure_share(during: str, moments: set[str]) -> float:
    """Return the share of a GPU up to which a moment is called `fits`.

    Args:
        moments: All moments of its pool.
    """
    return 1 - (LEFT_BESIDE_ENGINE if wakes_beside_trainers(during, moments) else UNSURE)
