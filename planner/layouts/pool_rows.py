"""Joining what roles can do on one pool: times and residents add up, the largest transient counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rlplan.job import Role
from rlplan.plan import TaskPlan
from rlplan.planner.layouts.option_table import (
    OptionTable,
    Places,
    RoleOption,
    WeightSharding,
    front_of_groups,
)
from rlplan.planner.placements.partitions import GENERATION, ColocatedSet
from rlplan.profiles.analytic.ordered import distinct, distinct_rows
from rlplan.simulator.columns import Floats, Ints
from rlplan.simulator.placed import Site

# How dear memory is for quick choices, in shares of (a pool's least seconds) / (a GPU's memory): from
# nothing to everything. They only decide how good the first plan is, not what is found in the end.
MEMORY_PRICES = (0.0, 0.01, 0.03, 0.1, 0.2, 0.4, 0.7, 1.0, 2.0, 5.0, 20.0, 1e6)


@dataclass(frozen=True, slots=True, eq=False)
class PoolRows:
    """Hold what a set can do on a site, one row each.

    Attributes:
        members: Roles whose tasks are laid out, generation aside.
        options: By role, what `picks` are places of.
        prepare, train: Seconds of the stages.
        resident: Bytes that stay on each GPU, buffers of groups of ranks left out.
        met: Those: of the role that meets in most.
        sharding: Places in `shardings`, -1 without a role that generates.
        picks: Shape (rows, members).
    """

    members: tuple[Role, ...]
    options: tuple[list[RoleOption], ...]
    shardings: tuple[WeightSharding, ...]
    prepare: Floats
    train: Floats
    resident: Ints
    transient: Ints
    met: Ints
    sharding: Ints
    picks: Ints

    @property
    def staying(self) -> Ints:
        """Return all bytes that stay on each GPU once all roles have run."""
        return self.resident + self.met

    @property
    def peak(self) -> Ints:
        """Return the bytes of each GPU while its hungriest task runs."""
        return self.staying + self.transient

    def __len__(self) -> int:
        return len(self.prepare)

    def layouts(self, row: int) -> dict[str, TaskPlan]:
        """Return a row's layouts by task name."""
        found: dict[str, TaskPlan] = {}
        for options, pick in zip(self.options, self.picks[row], strict=True):
            found |= dict(options[int(pick)].layouts)
        return found

    def rows(self, chosen: Places) -> "PoolRows":
        """Return the chosen rows."""
        return PoolRows(
            self.members,
            self.options,
            self.shardings,
            self.prepare[chosen],
            self.train[chosen],
            self.resident[chosen],
            self.transient[chosen],
            self.met[chosen],
            self.sharding[chosen],
            self.picks[chosen],
        )


def roles_of(members: ColocatedSet) -> tuple[Role, ...]:
    """Return the roles of a set whose tasks run there, a copy for generation aside."""
    return tuple(member for member in members if member != GENERATION)


class Join:
    """Join the options of a set's roles on one site."""

    def __init__(self, table: OptionTable, members: ColocatedSet, site: Site) -> None:
        self.roles = roles_of(members)
        self.apart = GENERATION in members
        self.generates = self.apart or table.space.generate_task().role in members
        # The same on every row: it counts with what stays once rows are chosen.
        self.contexts_bytes = table.space.contexts_bytes(len(self.roles), site)
        self.capacity = table.space.capacity_bytes(site) - self.contexts_bytes
        # An engine may stay there asleep, or generate on another pool.
        self.beside_bytes = 0 if self.apart else table.space.most_beside_bytes
        self.sleeps = table.space.job.engines.sleeps
        self.options = tuple(table.role_options(role, site) for role in self.roles)
        shardings = {
            each.sharding for some in self.options for each in some if each.sharding is not None
        }
        self.shardings = tuple(sorted(shardings))
        self.parts = [self._part(place) for place in range(len(self.roles))]
        self._under: dict[tuple[int, int], tuple[Floats, Ints]] = {}

    def quick(self) -> PoolRows:
        """Return rows chosen at several prices of memory, for every sharding, as far as they fit."""
        if not self.roles or not all(self.options):
            return self._nothing() if not self.roles else self._empty()
        leanest = [self._leanest(sharding) for sharding in (range(len(self.shardings)) or (-1,))]
        picks = distinct_rows(np.concatenate([self._priced(), *leanest]))
        rows = self._rows(picks)
        fits = rows.peak <= self.capacity
        return self._front(rows.rows(np.flatnonzero(fits)))

    def exact(self, limit_seconds: float) -> PoolRows:
        """Return the front of all rows that fit and take less than the limit."""
        if not self.roles or not all(self.options):
            return self._nothing() if not self.roles else self._empty()
        whole = [part.prepare + part.train for part in self.parts]
        slack = limit_seconds - sum(float(each.min()) for each in whole)
        lean = [int(part.resident.min()) for part in self.parts]
        joined: PoolRows | None = None
        for place, part in enumerate(self.parts):
            spared = np.flatnonzero(whole[place] - whole[place].min() < slack)
            some = part.rows(spared)
            joined = some if joined is None else self._pairs(joined, some, slack)
            fits = joined.peak + sum(lean[place + 1 :]) <= self.capacity
            joined = joined.rows(np.flatnonzero(fits))
            last = place + 1 == len(self.parts)
            joined = self._front(joined) if last else joined.rows(_unbeaten(joined))
        assert joined is not None, "there are roles"
        return joined

    def _pairs(self, left: PoolRows, right: PoolRows, slack: float) -> PoolRows:
        """Return all pairs of rows whose seconds exceed the least ones' by less than the slack."""
        if not len(left) or not len(right):
            return self._empty(left.members + right.members)
        excess = left.prepare + left.train
        other = right.prepare + right.train
        order = np.argsort(other, kind="stable")
        room = slack - (excess - excess.min()) + other.min()
        counts = np.searchsorted(other[order], room, side="left")
        first = np.repeat(np.arange(len(left)), counts)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        second = order[np.arange(len(first)) - starts]
        fits = (
            left.resident[first]
            + right.resident[second]
            + np.maximum(left.transient[first], right.transient[second])
            + np.maximum(left.met[first], right.met[second])
            <= self.capacity
        )
        first, second = first[fits], second[fits]
        return PoolRows(
            left.members + right.members,
            left.options + right.options,
            self.shardings,
            left.prepare[first] + right.prepare[second],
            left.train[first] + right.train[second],
            left.resident[first] + right.resident[second],
            np.maximum(left.transient[first], right.transient[second]),
            np.maximum(left.met[first], right.met[second]),
            np.maximum(left.sharding[first], right.sharding[second]),
            np.concatenate([left.picks[first], right.picks[second]], axis=1),
        )

    def _priced(self) -> Ints:
        """Return picks for each sharding at every price of memory, once transients fit beside residents."""
        least = sum(float((part.prepare + part.train).min()) for part in self.parts)
        prices = np.array(MEMORY_PRICES) * (least or 1.0) / self.capacity
        shape = (len(prices), max(1, len(self.shardings)))
        room = np.full(shape, float(self.capacity))
        picks = np.zeros((*shape, len(self.parts)), dtype=np.int64)
        costs = [part.prepare + part.train + prices[:, None] * part.staying for part in self.parts]
        for _ in range(3):
            for place, part in enumerate(self.parts):
                picks[..., place] = self._cheapest(part, costs[place], room)
            chosen = [part.resident[picks[..., place]] for place, part in enumerate(self.parts)]
            room = self.capacity - np.sum(chosen, axis=0).astype(float)
        return picks.reshape(-1, len(self.parts))

    def _cheapest(self, part: PoolRows, costs: Floats, room: Floats) -> Ints:
        """Return a role's cheapest rows whose transients fit, 0 where none does. Shape as `room`.

        Args:
            costs: At every price. Shape (prices, rows).
            room: For transients. Shape (prices, shardings).
        """
        taken = part.transient + part.met
        if part.sharding.max() < 0:
            fitting = np.where(taken > room[..., None], np.inf, costs[:, None])
            best = np.argmin(fitting, axis=2)
            least = np.take_along_axis(fitting, best[..., None], axis=2)[..., 0]
        else:  # each of its rows is of one sharding
            order = np.argsort(part.sharding, kind="stable")
            own = part.sharding[order]
            starts = np.searchsorted(own, np.arange(room.shape[1]))
            fitting = np.where(taken[order] > room[:, own], np.inf, costs[:, order])
            least = np.minimum.reduceat(fitting, starts, axis=1)
            best = np.where(fitting == least[:, own], order, len(order))
            best = np.minimum.reduceat(best, starts, axis=1)
        return np.where(np.isfinite(least), best, 0)

    def _of_sharding(self, part: PoolRows, sharding: int) -> Ints:
        """Return a role's rows that leave its weights in a sharding; all of a role that does not generate."""
        if sharding >= 0 and part.sharding.max() >= 0:
            return np.flatnonzero(part.sharding == sharding)
        return np.arange(len(part))

    def _leanest(self, sharding: int) -> Ints:
        """Return the picks of fewest resident bytes whose transients fit beside them.

        Beside a copy that generates, all picks of fewest resident bytes under a limit on transients.
        """
        limits, mets = self._limits
        resident: Floats = np.repeat(mets[:, None].astype(np.float64), len(limits), axis=1)
        picks = []
        for place in range(len(self.parts)):
            leanest, rows = self._leanest_under(place, sharding)
            picks.append(rows)
            resident += leanest
        fits = resident + limits <= self.capacity
        if not self.apart:
            best = int(np.argmin(np.where(fits, resident, np.inf)))
            chosen = np.zeros_like(fits)
            chosen.flat[best] = fits.flat[best]
            fits = chosen
        return np.stack([rows[fits] for rows in picks], axis=1)

    @cached_property
    def _limits(self) -> tuple[Ints, Ints]:
        """Return all transient bytes of roles' rows, and all buffers of groups, each ascending."""
        columns = ([getattr(part, name) for part in self.parts] for name in ("transient", "met"))
        limits, mets = (distinct(np.concatenate(each)) for each in columns)
        return limits, mets

    def _leanest_under(self, place: int, sharding: int) -> tuple[Floats, Ints]:
        """Return the fewest resident bytes of a role's rows of a sharding under limits on both other bytes, and the rows.

        Infinite where there are none. Shape (buffers of groups, transients), both.
        """
        part = self.parts[place]
        key = (place, sharding if part.sharding.max() >= 0 else -1)
        if key not in self._under:
            rows = self._of_sharding(part, sharding)
            order = rows[np.argsort(part.transient[rows], kind="stable")]
            self._under[key] = self._fewest(part, order)
        return self._under[key]

    def _fewest(self, part: PoolRows, order: Ints) -> tuple[Floats, Ints]:
        """Return the same of rows that are said, those of fewest transient bytes first."""
        limits, mets = self._limits
        if not len(order):
            shape = (len(mets), len(limits))
            return np.full(shape, np.inf), np.zeros(shape, dtype=np.int64)
        allowed = part.met[order] <= mets[:, None]
        leanest = np.minimum.accumulate(np.where(allowed, part.resident[order], np.inf), axis=1)
        # Of equal ones the first counts.
        newer = np.ones(leanest.shape, dtype=bool)
        newer[:, 1:] = leanest[:, 1:] < leanest[:, :-1]
        first = np.maximum.accumulate(np.where(newer, np.arange(len(order)), 0), axis=1)
        last = np.searchsorted(part.transient[order], limits, side="right") - 1
        return np.where(last < 0, np.inf, leanest[:, last]), order[first[:, last]]

    def _part(self, place: int) -> PoolRows:
        some = self.options[place]
        numbers = {None: -1} | {each: number for number, each in enumerate(self.shardings)}
        return PoolRows(
            self.roles[place : place + 1],
            self.options[place : place + 1],
            self.shardings,
            np.array([each.preparation_seconds for each in some], dtype=np.float64),
            np.array([each.training_seconds for each in some], dtype=np.float64),
            np.array([each.resident_bytes for each in some], dtype=np.int64),
            np.array([each.transient_bytes for each in some], dtype=np.int64),
            np.array([each.met_bytes for each in some], dtype=np.int64),
            np.array([numbers[each.sharding] for each in some], dtype=np.int64),
            np.arange(len(some))[:, None],
        )

    def _rows(self, picks: Ints) -> PoolRows:
        columns = list(zip(self.parts, picks.T, strict=True))
        return PoolRows(
            self.roles,
            self.options,
            self.shardings,
            np.sum([part.prepare[pick] for part, pick in columns], axis=0),
            np.sum([part.train[pick] for part, pick in columns], axis=0),
            np.sum([part.resident[pick] for part, pick in columns], axis=0),
            np.max([part.transient[pick] for part, pick in columns], axis=0),
            np.max([part.met[pick] for part, pick in columns], axis=0),
            np.max([part.sharding[pick] for part, pick in columns], axis=0),
            picks,
        )

    def _front(self, rows: PoolRows) -> PoolRows:
        """Return what no row beats: in time, and on a pool that generates in residents too."""
        keys = [rows.prepare, rows.train]
        if self.generates:
            keys.append(rows.staying.astype(np.float64))
        if self.generates and (self.apart or not self.sleeps):
            # Beside a copy's weights, and an engine that is awake, transients may be what does not fit.
            keys.append(rows.transient.astype(np.float64))
        elif self.generates and self.beside_bytes:  # and so beside an engine that sleeps
            keys.append(np.maximum(0.0, rows.peak + self.beside_bytes - self.capacity))
        kept = rows.rows(front_of_groups(np.stack(keys, axis=1), rows.sharding))
        return replace(kept, resident=kept.resident + self.contexts_bytes)

    def _nothing(self) -> PoolRows:
        """Return the one row of a set without tasks of its own: a copy that generates."""
        zero = np.zeros(1, dtype=np.int64)
        picks = np.zeros((1, 0), dtype=np.int64)
        seconds = np.zeros(1)
        return PoolRows((), (), (), seconds, seconds, zero, zero, zero, zero - 1, picks)

    def _empty(self, members: Sequence[Role] | None = None) -> PoolRows:
        none = np.zeros(0, dtype=np.int64)
        roles = self.roles if members is None else tuple(members)
        picks = np.zeros((0, len(roles)), dtype=np.int64)
        seconds = np.zeros(0)
        return PoolRows(
            roles, self.options, self.shardings, seconds, seconds, none, none, none, none, picks
        )


def _unbeaten(rows: PoolRows) -> Places:
    """Return what no row of the same sharding beats in time and in memory."""
    keys = np.stack([rows.prepare, rows.train, rows.resident, rows.transient, rows.met], axis=1)
    return front_of_groups(keys, rows.sharding)


# Level 1, second half: what a colocated set can do on a pool, its roles' memories together.
#
# Roles of a pool run by turns, so their stage times add up, their resident bytes add up, and of their
# transient bytes the largest counts, as of the buffers of their groups. What generation may fill with its KV
# cache is what is left.


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

    def prepare(self, members: ColocatedSet, sites: Sequence[Site]) -> None:
        """Find what a set's roles can do on sites that will be asked for, many at a time."""
        for role in roles_of(members):
            self.options.prepare(role, sites)

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
        space = self.options.space
        room = space.capacity_bytes(site) - space.contexts_bytes(len(roles), site)
        return LowerBounds(
            sum(least.prepare_seconds for least in each),
            sum(least.train_seconds for least in each),
            sum(least.whole_seconds for least in each),
            resident + transient + met <= room,
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
