"""All models share all GPUs by turns, as DeepSpeed-Chat places them."""

from rlplan.job import Role
from rlplan.planner.placements.partitions import RolePlacement


def place(roles: tuple[Role, ...]) -> RolePlacement:
    """Return one set of all roles."""
    return (roles,)
