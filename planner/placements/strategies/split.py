"""Actor with reference, and critic with reward, as NeMo-Aligner places them."""

from rlplan.job import Role
from rlplan.planner.placements.partitions import RolePlacement

ACTOR_SIDE: frozenset[Role] = frozenset({"actor", "reference"})


def place(roles: tuple[Role, ...]) -> RolePlacement:
    """Return the actor's side and, if it has any role, the critic's side."""
    actor = tuple(role for role in roles if role in ACTOR_SIDE)
    critic = tuple(role for role in roles if role not in ACTOR_SIDE)
    return tuple(members for members in (actor, critic) if members)
