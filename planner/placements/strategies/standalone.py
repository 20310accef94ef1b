"""Every model has GPUs of its own, as OpenRLHF placed them in 2024."""

from rlplan.job import Role
from rlplan.planner.placements.partitions import RolePlacement


def place(roles: tuple[Role, ...]) -> RolePlacement:
    """Return one set for each role."""
    return tuple((role,) for role in roles)
