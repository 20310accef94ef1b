"""Every model has GPUs of its own, as OpenRLHF placed them in 2024."""

from planner.placements.partitions import RolePlacement
from rlplan.job import Role


def place(roles: tuple[Role, ...]) -> RolePlacement:
    """Return one set for each role."""
    return tuple((role,) for role in roles)
