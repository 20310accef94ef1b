"""Level 1, second half: what a colocated set can do on a pool, its roles' memories together.

Roles of a pool run by turns, so their stage times add up, their resident bytes add up, and of their
transient bytes the largest counts, as of the buffers of their groups. What generation may fill with its KV
cache is what is left.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from rlplan.job import Role
from rlplan.planner.layouts.option_table import OptionTable
from rlplan.planner.layouts.pool_rows import Join, PoolRows, roles_of
from rlplan.planner.layouts.role_options import RoleOption
from rlplan.planner.placements.partitions import ColocatedSet
from rlplan.simulator.placed.site import Site


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """Hold what no choice of a set on a site can beat, stage by stage, each role by itself.

    Attributes:
        whole_seconds: Of both stages together.
        fits: Whether each role at its leanest leaves room for the others.
    """

    prepare_seconds: float
    train_seconds: float
    whole_seconds: float
    fits: bool


class LeastAlone(NamedTuple):
    """Hold the least of each number over a role's options on a site; infinite where it has none."""

    prepare_seconds: float
    train_seconds: float
    whole_seconds: float
    resident_bytes: float
    transient_bytes: float
    met_bytes: float


class PoolTable:
    """List what colocated sets can do on sites, each computed once."""

    def __init__(self, options: OptionTable) -> None:
        self.options = options
        self._least: dict[tuple[ColocatedSet, Site], LowerBounds] = {}
        self._roles: dict[tuple[Role, Site], LeastAlone] = {}
        self._quick: dict[tuple[ColocatedSet, Site], PoolRows] = {}
        self._exact: dict[tuple[ColocatedSet, Site], tuple[float, PoolRows]] = {}

    def least(self, members: ColocatedSet, site: Site) -> LowerBounds:
        """Return bounds on what a set can do."""
        key = (members, site)
        if key not in self._least:
            self._least[key] = self._least_of(roles_of(members), site)
        return self._least[key]

    def quick(self, members: ColocatedSet, site: Site) -> PoolRows:
        """Return some good rows, and the leanest of every weight sharding; none only if nothing fits."""
        key = (members, site)
        if key not in self._quick:
            self._quick[key] = Join(self.options, members, site).quick()
        return self._quick[key]

    def exact(self, members: ColocatedSet, site: Site, limit_seconds: float) -> PoolRows:
        """Return the front of all rows whose stages take less than a limit together."""
        key = (members, site)
        known = self._exact.get(key)
        if known is None or known[0] < limit_seconds:
            joined = Join(self.options, members, site).exact(limit_seconds)
            known = self._exact[key] = (limit_seconds, joined)
        return known[1]

    def _least_of(self, roles: tuple[Role, ...], site: Site) -> LowerBounds:
        each = [self._alone(role, site) for role in roles]
        resident = sum(least.resident_bytes for least in each)
        transient = max((least.transient_bytes for least in each), default=0)
        met = max((least.met_bytes for least in each), default=0)
        return LowerBounds(
            sum(least.prepare_seconds for least in each),
            sum(least.train_seconds for least in each),
            sum(least.whole_seconds for least in each),
            resident + transient + met <= self.options.space.capacity_bytes(site),
        )

    def _alone(self, role: Role, site: Site) -> LeastAlone:
        key = (role, site)
        if key not in self._roles:
            self._roles[key] = _least_of(self.options.role_options(role, site))
        return self._roles[key]


def _least_of(options: list[RoleOption]) -> LeastAlone:
    if not options:
        return LeastAlone(*[math.inf] * 6)
    return LeastAlone(
        min(each.preparation_seconds for each in options),
        min(each.training_seconds for each in options),
        min(each.preparation_seconds + each.training_seconds for each in options),
        min(each.resident_bytes for each in options),
        min(each.transient_bytes for each in options),
        min(each.met_bytes for each in options),
    )
