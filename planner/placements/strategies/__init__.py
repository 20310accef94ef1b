"""Named placements, one file each: `place(roles) -> RolePlacement`; the name is the file's name."""

from collections.abc import Callable

from rlplan.job import Role
from rlplan.planner.placements.partitions import RolePlacement
from rlplan.plug_ins import PlugIns

STRATEGIES = PlugIns[Callable[[tuple[Role, ...]], RolePlacement]](
    __name__, __path__, kind="placement strategy", attribute="place", dashes=False
)
strategy_names = STRATEGIES.names


def place(name: str, roles: tuple[Role, ...]) -> RolePlacement:
    """Return the placement that a named strategy gives to these roles.

    Raises:
        UnknownNameError: No strategy of that name exists.
    """
    return STRATEGIES.load(name)(roles)
