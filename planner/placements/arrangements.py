"""Arrangements: the ways in which a framework's roles can share GPUs, and its iterations follow each other."""

from dataclasses import dataclass
from typing import Literal

from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import AtLeastOne, NonNegative
from rlplan.job import Role
from rlplan.plan import USUAL_MODE, InFlight, Mode, Recompute, TaskDraft, TaskPlan
from rlplan.planner.placements.partitions import GENERATION, Placement

Fixed = FrozenDict[Role | Literal["train", "infer", "generate"], TaskDraft]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Say which parts of their layouts several tasks have in common.

    Attributes:
        kinds: Of tasks, as `rlplan.stages` names them.
        roles: Whose tasks; none means all.
        trainers: In which; none means all.
    """

    fields: tuple[str, ...]
    kinds: tuple[str, ...]
    roles: tuple[Role, ...] = ()
    trainers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Describe one way to run, as far as it limits placements, layouts and modes.

    Attributes:
        trainers: Names of the trainers, in the sheet of keys, that run so.
        modes: How iterations may follow each other.
        apart: Whether the actor generates on a pool of its own.
        sets: Roles that share a pool; a placement's sets are some of these, roles that a job lacks left out.
        needs: Roles without which a job is not run so.
        whole_nodes: Whether pools are whole nodes, unless they share a single one.
        layouts: Fields of layouts that are fixed, by kind of task or by role.
        usual_running: Whether its engine decides by its GPU how many sequences it decodes at a time.
        choices: Fields that are fixed together, of which a plan has one; none means that nothing is.
        offload: Whether states of roles that are trained may leave the GPUs, in all of a role's tasks alike.
        shared: What tasks have in common.
        updates: Of a global batch; None leaves it open.
        otherwise: Whether it is for jobs that none of the others runs as asked.
        packs: Whether micro-batches of roles without a fixed layout are packed up to token budgets, in all of their
            tasks alike; none leaves that open.
        least_staleness: Of mode async.
        sync_every: Iterations between two syncs of weights in mode async; None leaves it open.
        in_flight: What may become of responses under way in mode async, the usual first; none leaves it open.
    """

    name: str
    trainers: tuple[str, ...]
    modes: tuple[Mode, ...] = (USUAL_MODE,)
    apart: bool = False
    sets: tuple[tuple[Role, ...], ...]
    needs: tuple[Role, ...] = ()
    whole_nodes: bool = False
    layouts: Fixed = FrozenDict()
    usual_running: bool = False
    choices: tuple[Fixed, ...] = ()
    offload: tuple[bool, ...] = (False, True)
    shared: tuple[Shared, ...] = ()
    updates: AtLeastOne | None = None
    otherwise: bool = False
    packs: tuple[bool, ...] = ()
    least_staleness: NonNegative = 0.0
    sync_every: AtLeastOne | None = None
    in_flight: tuple[InFlight, ...] = ()

    def allows(self, placement: Placement) -> bool:
        """Tell whether a placement's sets are of those that there are, and whether it generates where it should."""
        if ((GENERATION,) in placement) != self.apart:
            return False
        placed = [members for members in placement if members != (GENERATION,)]
        roles = {role for members in placed for role in members}
        known = {frozenset(roles.intersection(each)) for each in self.sets}
        return all(frozenset(members) in known for members in placed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arranged:
    """Hold the arrangement that a search keeps to.

    Attributes:
        recompute: What backward passes may compute again; none means whatever the engine may.
        packs: Whether micro-batches of roles without a fixed layout are packed; None leaves that open.
    """

    arrangement: Arrangement
    recompute: tuple[Recompute, ...] = ()
    packs: bool | None = None

    def generates_with(self, layout: TaskPlan) -> bool:
        """Tell whether generation runs in a layout: experts that are spread out are whole, over TP groups."""
        whole = (layout.expert_tp or layout.tp) == 1 and layout.ep % layout.tp == 0
        return layout.ep == 1 or whole
