"""All models share all GPUs by turns, as DeepSpeed-Chat places them."""

from planner.placements.partitions import Placement
from rlplan.job import Role


def place(roles: tuple[Role, ...]) -> Placement:
    """Return one set of all roles."""
    return (roles,)
