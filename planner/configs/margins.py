"""How full a GPU or a host may be before a verdict is no plain yes."""

from typing import Final

from rlplan.models import is_narrow
from rlplan.plan import ResourcePool
from rlplan.planner.answers.verdicts import UNSURE
from rlplan.planner.configs.proposing.changes import GENERATE
from rlplan.planner.requests.specs import USUAL_HEADROOM
from rlplan.simulator.memory.terms import optimizer_term
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.stages import task_memory
from rlplan.simulator.timeline.pool_memory import TRANSITION

# An engine that wakes beside trainers fills its share, and what their allocators keep is known least: where less than
# what searches leave free is left, seven of ten ran out of those that were looked at first, and twelve of all thirty
# (docs/memory.md, verdict).
LEFT_BESIDE_ENGINE: Final = USUAL_HEADROOM


def wakes_beside_trainers(during: str, moments: set[str]) -> bool:
    """Tell whether an engine fills its share at a moment, on a GPU where others train or score at other moments."""
    return during == GENERATE and not moments <= {GENERATE, TRANSITION}


def sure_share(during: str, moments: set[str], kept: float = 0.0) -> float:
    """Return the share of a GPU up to which a moment is called `fits`.

    Args:
        moments: All moments of its pool.
        kept: Share of a GPU that its trainers may keep beside what is counted, as an engine wakes or gets weights (`idle_bytes`, `lingering_bytes`).
    """
    if wakes_beside_trainers(during, moments):
        return 1 - max(LEFT_BESIDE_ENGINE, kept + UNSURE)
    gets_weights = during == TRANSITION and GENERATE in moments
    return 1 - UNSURE - (kept if gets_weights else 0.0)


def kept_share(placed: PlacedPlan, pool: ResourcePool) -> float:
    """Return the share of a pool's GPU that its trainers may keep beside what is counted, as an engine wakes."""
    kept_bytes = idle_bytes(placed, pool) + lingering_bytes(placed, pool)
    return kept_bytes / placed.facts.device(pool.device).sheet.memory_bytes


def idle_bytes(placed: PlacedPlan, pool: ResourcePool) -> int:
    """Return the most bytes that blocks of a trainer's emptied allocator were measured to hold beyond tensors; 0 where nobody did."""
    trainers = (task for task in placed.tasks_on(pool) if task.trains)
    each = (
        task.framework.idle_narrow_bytes if is_narrow(task.precision) else task.framework.idle_bytes
        for task in trainers
    )
    return max(each, default=0)


def lingering_bytes(placed: PlacedPlan, pool: ResourcePool) -> int:
    """Return the bytes of optimizer states that leave a pool's GPUs, and may come to lie on them all the same.

    So it is where a GPU's memory is a node of its host's, and the framework binds its processes to none.
    """
    if not placed.facts.device(pool.device).sheet.extends_host:
        return 0
    leaving = {
        task.task.role: task_memory(task).transient.get(optimizer_term(task.task.role), 0)
        for task in placed.tasks_on(pool)
        if task.trains and not task.framework.binds_host
    }
    return sum(leaving.values())
