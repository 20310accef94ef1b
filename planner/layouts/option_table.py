"""Level 1 of the search: what each role can do on a pool of a given size, with its costs.

A `RoleOption` fixes the layouts of all tasks of one role, generation's excepted. A role that both infers
and trains has one cut for both, since its weights live in one place. All layouts of a role are costed
together; what is left are those that no other beats in time and memory.
"""

from planner.layouts.layout_space import LayoutSpace
from planner.layouts.role_fronts import RoleFront
from planner.layouts.role_options import RoleOption, Tally
from rlplan.job import Role
from rlplan.plan import TaskPlan
from simulator.placed.site import Site


class OptionTable:
    """List the options of roles on sites, each computed once."""

    def __init__(self, space: LayoutSpace) -> None:
        self.space, self.tally = space, Tally()
        self._roles: dict[tuple[Role, Site], list[RoleOption]] = {}
        self._least: dict[tuple[Role, Site], tuple[int, int] | None] = {}

    def role_options(self, role: Role, site: Site) -> list[RoleOption]:
        """Return the Pareto front of a role's options that fit a site's GPU by themselves."""
        key = (role, site)
        if key not in self._roles:
            front = RoleFront(self.space, role, site, self.tally)
            self._roles[key] = front.options()
            self._least[key] = front.least
        return self._roles[key]

    def least_bytes(self, role: Role, site: Site) -> tuple[int, int] | None:
        """Return resident and transient bytes of a role's leanest layout, fitting or not.

        None if it cannot be laid out at all.
        """
        self.role_options(role, site)
        return self._least.get((role, site))

    def generate_options(self, site: Site) -> list[TaskPlan]:
        """Return the layouts of generation on a site, not costed yet."""
        layouts, pruned = self.space.generation_layouts(site)
        self.tally.prune("pinned by the user", pruned)
        self.tally.consider("layouts of generation", len(layouts))
        return layouts
