"""How a pool can generate: in which layout, after which transition, with how much KV cache.

It looks at one pool at a time; what else runs there is bytes that the cache does not get.

What generation takes depends on a replica, its share of the sequences and its cache; exact seconds are
remembered by these. A bound in closed form comes first, and only what can still win is played.
"""

import bisect
import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from rlplan.dataflow import Task, in_calls
from rlplan.job import Job
from rlplan.plan import TaskPlan
from rlplan.planner.exact.generation_bounds import (
    BoundedSettings,
    BoundingLoad,
    episode_loads,
    least_seconds,
    load_of,
)
from rlplan.planner.layouts.layout_space import LayoutSpace
from rlplan.planner.layouts.option_table import OptionTable, WeightSharding, front_rows
from rlplan.planner.layouts.pool_rows import PoolRows
from rlplan.planner.placements.allocations import Share
from rlplan.results.forecast import CALL
from rlplan.rules.batches import rank_sequences
from rlplan.rules.flow import transitions
from rlplan.simulator.answers import job_of_any_lengths
from rlplan.simulator.columns import Flags, Floats, Ints
from rlplan.simulator.costs.syncs import least_sync_seconds, transition_cost
from rlplan.simulator.costs.taskcost import call_of, times_of
from rlplan.simulator.generation.caching import kept_block_bytes
from rlplan.simulator.generation.generating import begun, steps_of
from rlplan.simulator.generation.prices import EngineSteps
from rlplan.simulator.generation.shares import longest_shares, waits
from rlplan.simulator.memory.task_memory import (
    CONTEXT,
    generation_weight_bytes,
    least_kv_bytes,
    useful_kv_bytes,
)
from rlplan.simulator.memory.transition_memory import (
    Room,
    bucket_terms,
    extra_weight_bytes,
    generation_working_bytes,
    has_own_context,
    is_whole_before_weights,
    synced_bytes,
    train_shard_bytes,
    transition_terms,
)
from rlplan.simulator.model import as_told
from rlplan.simulator.placed import PlacedTask, PlacedTransition, Site
from rlplan.simulator.stages import task_cost
from rlplan.simulator.workload import statistics_of
from rlplan.transfers import TRANSFERS, TWO_COPIES, TransitionName

# How a pool can generate: in which layout, after which transition, with how much KV cache.
#
# What generation takes depends on a replica, its share of the sequences and its cache; exact seconds are
# remembered by these. A bound in closed form comes first, and only what can still win is played.


@dataclass(frozen=True, slots=True)
class WeightMove:
    """Hold what it takes to bring weights from where they train to a generation layout.

    Attributes:
        extra_bytes: Weights that generation adds to the pool's residents.
        peak_bytes: What the transition takes of each GPU beside the pool's residents.
        synced_bytes: What it has on an engine's GPU beside weights and cache, where the cache stays meanwhile.
        spared_bytes: Context that is counted among what an engine alone on its GPUs has beside its share.
    """

    transition: TransitionName
    seconds: float
    extra_bytes: int
    peak_bytes: int
    synced_bytes: int = 0
    spared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Replicas:
    """Hold one generation layout on one site with its memory.

    Attributes:
        working_bytes: What the engine holds beside weights and cache.
        weight_bytes: A whole copy of a GPU's weights.
        least_bytes: With less cache, not one sequence runs.
        useful_bytes: More cache is of no use.
        block_bytes: One block of the cache on one GPU, with what a draft keeps of its tokens.
        state_blocks: Blocks that a sequence takes beside those of its tokens.
        bounds: Seconds that are known not to be beaten, by the cache's blocks.
        moves: Transitions that no other beats, by where weights train and the residents beside them.
    """

    layout: TaskPlan
    site: Site
    working_bytes: int
    weight_bytes: int
    least_bytes: float
    useful_bytes: float
    block_bytes: float
    state_blocks: int
    bounds: dict[float, float] = field(default_factory=dict, compare=False, repr=False)
    moves: dict[tuple[WeightSharding, float], list[WeightMove]] = field(
        default_factory=dict, compare=False, repr=False
    )


# A share of the cluster, its site, and what a set can do there.
ShareRows = tuple[Share, Site, PoolRows]


@dataclass(frozen=True, slots=True, eq=False)
class GenerationOption:
    """Hold one layout of generation with the transition to it, on one share."""

    share: Share
    site: Site
    rows: PoolRows
    replicas: Replicas
    move: WeightMove


# A way with the rows that leave room for it, their caches, and bounds on transition and generation.
OptionRows = tuple[GenerationOption, Ints, Floats, Floats]


@dataclass(frozen=True, slots=True, eq=False)
class UnpricedMove:
    """Hold a transition that is not priced yet, with the memory that it takes (as `WeightMove` has it)."""

    transition: PlacedTransition
    extra_bytes: int
    peak_bytes: int
    synced_bytes: int

    @classmethod
    def of(cls, transition: PlacedTransition) -> "UnpricedMove":
        """Return a transition with what it holds."""
        peak = sum(transition_terms(transition).values())
        synced = synced_bytes(transition)
        return cls(transition, extra_weight_bytes(transition), peak, synced)

    def priced(self) -> WeightMove:
        """Return it with its seconds."""
        seconds = transition_cost(self.transition).total.seconds
        sizes = (self.extra_bytes, self.peak_bytes, self.synced_bytes)
        return WeightMove(self.transition.name, seconds, *sizes)


def cut_of(layout: TaskPlan) -> tuple[int | None, ...]:
    """Return what layouts of generation have alike that differ in settings only."""
    return layout.tp, layout.pp, layout.dp, layout.cp, layout.ep, layout.expert_tp


ACTOR = "actor"

# A smaller cache is as good as never faster. Where sequences are preempted it can be, since who is thrown
# out when is decided step by step: in 0.6 % of 1,650 pairs of sizes, by 0.6 % of generation's seconds in
# the median and 1.7 % at most (tests/planner/test_generations.py repeats the count). Bounds from larger
# caches leave that much.
PREEMPTION_NOISE_FRACTION = 0.02

# Bounds for many sizes of cache are taken from generations played at few: so far apart, as a ratio.
CACHE_STEP = 1.15


class GenerationTable:
    """Cost generation on sites, each layout and size of cache once.

    Attributes:
        ways: How weights get from where they train to where they generate.
    """

    def __init__(self, options: OptionTable, ways: "WeightMoves") -> None:
        self.options, self.ways = options, ways
        self.job, self.facts = options.space.job, options.space.facts
        self.task = options.space.generate_task()
        self.task, self.job = self._generated()
        engine = self.facts.engine(options.space.engine_of(self.task))
        self.engine = as_told(engine, self.task, self.job)
        self.played = 0
        self._seconds: dict[tuple[TaskPlan, Site, int], float] = {}
        self._sizes: dict[tuple[TaskPlan, Site], list[tuple[int, float]]] = {}
        self._replicas: dict[Site, list[Replicas]] = {}
        self._alike: dict[Hashable, list[Replicas]] = {}
        self._least: dict[Hashable, float] = {}
        self._clocks: dict[Hashable, object] = {}
        self._bare_sites: dict[Site, Site] = {}
        self._loads: dict[tuple[int, int], list[BoundingLoad]] = {}

    def _generated(self) -> tuple[Task, Job]:
        """Return what generates, and the job with the prompts that are generated at once."""
        return in_calls(self.task, self.job)

    def replicas(self, site: Site) -> list[Replicas]:
        """Return the generation layouts of a site."""
        if site not in self._replicas:
            layouts = self.options.generate_options(site)
            self._replicas[site] = [self._described(layout, site) for layout in layouts]
            for each in self._replicas[site]:
                self._alike.setdefault((cut_of(each.layout), site), []).append(each)
        return self._replicas[site]

    def least_bound(self, replicas: Replicas) -> float:
        """Return seconds that no generation in a layout's cut beats, whatever cache and running limit it has.

        Infinite where not even an empty pool has room.
        """
        key = (cut_of(replicas.layout), replicas.site)
        if key not in self._least:
            alike = [each for each in self._alike[key] if self._runs_alone(each)]
            self._least[key] = self._least_of(alike)
        return self._least[key]

    def _least_of(self, alike: list[Replicas]) -> float:
        """Return what layouts that differ in their running limit cannot beat: the least limited of them."""
        if not alike:
            return math.inf
        widest = max(alike, key=lambda each: each.layout.max_running)
        if len(alike) == 1 or not self._is_continuous(widest):
            return min(self.bound_alone(each) for each in alike)
        blocks = max(each.useful_bytes // each.block_bytes for each in alike)
        return float(self._bounds(widest, np.array([blocks]), waits=True)[0])

    def bound_alone(self, replicas: Replicas) -> float:
        """Return seconds that generation cannot beat, however large its cache; infinite where it never runs."""
        if not self._runs_alone(replicas):
            return math.inf
        return float(self.bounds(replicas, np.array([replicas.useful_bytes]))[0])

    def _runs_alone(self, replicas: Replicas) -> bool:
        cache = self.cache_bytes(replicas, np.zeros(1), 0, self._context_bytes(replicas))
        return bool(cache[0] >= replicas.least_bytes)

    def moves(
        self, sharding: WeightSharding, replicas: Replicas, resident_bytes: float
    ) -> list[WeightMove]:
        """Return the transitions on one pool that no other beats in time and memory.

        Those are left out, before they are priced, that leave no room beside so many residents.
        """
        known, asked = replicas.moves, (sharding, resident_bytes)
        if asked not in known:
            known[asked] = self._moves_beside(sharding, replicas, resident_bytes)
        return known[asked]

    def _moves_beside(
        self, sharding: WeightSharding, replicas: Replicas, resident_bytes: float
    ) -> list[WeightMove]:
        layout, site = replicas.layout, replicas.site
        # Weights that generate are at most spared what the trained shard has of them.
        added = max(0, replicas.weight_bytes - self.ways.trained_bytes(sharding, site))
        if resident_bytes + self.beside_bytes(replicas) + added > self.options.space.capacity_bytes(
            site
        ):
            return []
        key = (sharding, cut_of(layout), site)
        brought, priced = self.ways.brought, self.ways.priced
        if key not in brought:
            brought[key] = self.ways.bringing(sharding, layout, site)
        fitting = [
            each for each in brought[key] if self._leaves_room(each, replicas, resident_bytes)
        ]
        if not fitting:
            return []
        asked = (*key, tuple(each.transition.name for each in fitting))
        if asked not in priced:
            found = [self._priced(each) for each in fitting]
            keys = [(each.seconds, each.extra_bytes, each.peak_bytes) for each in found]
            kept = front_rows(np.array(keys).reshape(len(keys), 3))
            priced[asked] = [found[place] for place in kept]
        return priced[asked]

    def _priced(self, brought: UnpricedMove) -> WeightMove:
        return brought.priced()

    def _leaves_room(
        self, brought: UnpricedMove, replicas: Replicas, resident_bytes: float
    ) -> bool:
        """Tell whether one generates after it beside residents; where not, nor beside more of them."""
        others = resident_bytes + self.beside_bytes(replicas)
        if others + brought.peak_bytes > self.options.space.capacity_bytes(replicas.site):
            return False
        cache = self.cache_bytes(replicas, np.float64(resident_bytes), brought.extra_bytes)
        return bool(cache >= replicas.least_bytes)

    def alone_seconds(self, replicas: Replicas) -> tuple[float, float]:
        """Return what the longest and the shortest response take where they are more than parts of a batch."""
        del replicas
        return 0.0, 0.0

    def bounds_beside(
        self, replicas: Replicas, resident_bytes: Floats, *, apart: bool = False
    ) -> Floats:
        """Return bounds on generation beside so many residents; infinite where it cannot run.

        Shape as `resident_bytes`.

        Args:
            apart: Whether the weights are a copy on a pool that does not train them, where an engine may be alone.
        """
        spared = self._context_bytes(replicas) if apart else 0
        cache = self.cache_bytes(replicas, resident_bytes, 0, spared)
        runs = cache >= replicas.least_bytes
        return np.where(runs, self.bounds(replicas, cache), np.inf)

    def cache_bytes(
        self,
        replicas: Replicas,
        resident_bytes: Floats | np.float64,
        extra_bytes: int,
        spared_bytes: int = 0,
    ) -> Floats:
        """Return the cache that residents leave on each GPU, in bytes, as far as it is of use.

        Args:
            resident_bytes: Of the pool, without the weights that generation adds.
            spared_bytes: As `left_bytes` has it.
        """
        left = self.left_bytes(replicas, resident_bytes, extra_bytes, spared_bytes=spared_bytes)
        return np.minimum(left, replicas.useful_bytes)

    def _context_bytes(self, replicas: Replicas) -> int:
        """Return the context of a process, where the engine's share does not count it."""
        if self.engine.share.counts_others == "everything":
            return 0
        return self.facts.device(replicas.site.device).context_bytes

    def beside_bytes(self, replicas: Replicas) -> int:
        """Return what the engine has on each GPU beyond its share, asleep or awake."""
        return self.engine.share.lasting_bytes(replicas.layout.tp * replicas.layout.pp)

    def left_bytes(
        self,
        replicas: Replicas,
        resident_bytes: Floats | np.float64,
        extra_bytes: int,
        synced_bytes: int = 0,
        spared_bytes: int = 0,
        passing_bytes: Floats | float = 0.0,
    ) -> Floats:
        """Return the cache that an engine's share leaves, of use or not; the largest share unless one is pinned.

        What lay there when the engine started is not told apart from what came later: as if nothing had. Where it goes off
        the share, a plan's is as much larger, up to a hundredth: here it is not rounded.

        Args:
            synced_bytes: What a sync has beside weights and cache, where the cache stays meanwhile.
            spared_bytes: Of the context, what is counted beside the share.
            passing_bytes: What others take and give back, with a context, beside an engine that does not sleep.
        """
        others = resident_bytes + self.beside_bytes(replicas)
        room = Room(
            capacity_bytes=self.facts.device(replicas.site.device).sheet.memory_bytes,
            weights_bytes=extra_bytes,
            working_bytes=replicas.working_bytes,
            others_bytes=others,
            started_bytes=0.0,
            synced_bytes=synced_bytes,
            passing_bytes=self._beside_context(passing_bytes, replicas.site),
        )
        draft = self.options.space.drafts.get(self.task.name)
        fraction: Floats | float = replicas.layout.memory_fraction
        if draft is None or draft.memory_fraction is None:
            usable = self.options.space.capacity_bytes(replicas.site)
            usable -= self._context_bytes(replicas) - spared_bytes
            rounds = self.engine.share.counts_others != "started"
            fraction = room.fraction_left(self.engine, usable, rounds=rounds)
        return room.cache_bytes(self.engine, fraction)

    def _beside_context(self, passing_bytes: Floats | float, site: Site) -> Floats | float:
        """Return what others take at a time beside a context and an engine that does not sleep; 0 where it sleeps."""
        if self.job.engines.sleeps:
            return 0.0
        return np.maximum(0.0, passing_bytes - self.facts.device(site.device).context_bytes)

    def fitting(
        self,
        replicas: Replicas,
        resident_bytes: Floats,
        move: WeightMove,
        passing_bytes: Floats | float = 0.0,
        *,
        apart: bool,
    ) -> tuple[Flags, Floats]:
        """Tell which residents leave room for a transition, and for generation at its fullest; with the cache as far as it is of use.

        Shapes as `resident_bytes`.

        Args:
            passing_bytes: As `left_bytes` has it.
            apart: Whether the weights are trained on another pool.
        """
        usable = self.options.space.capacity_bytes(replicas.site)
        others = resident_bytes + self.beside_bytes(replicas)
        sizes = (move.extra_bytes, move.synced_bytes, move.spared_bytes)
        left = self.left_bytes(replicas, resident_bytes, *sizes, passing_bytes)
        cache = np.minimum(left, replicas.useful_bytes)
        own = max(replicas.working_bytes + self.engine.share.awake_bytes, move.synced_bytes)
        own += move.extra_bytes + self._context_bytes(replicas) - move.spared_bytes
        filled = self._least_filled(replicas, resident_bytes, left)
        full, moving = others + own + filled, others + move.peak_bytes
        if not apart and is_whole_before_weights(self.engine, self.job):
            moving = moving + filled + self.engine.share.awake_bytes
        fits = (cache >= replicas.least_bytes) & (full <= usable) & (moving <= usable)
        return np.asarray(fits), cache

    def kept_bytes(
        self,
        replicas: Replicas,
        resident_bytes: Floats,
        move: WeightMove,
        passing_bytes: Floats,
        *,
        apart: bool,
    ) -> Floats:
        """Return the least bytes that an engine keeps on each GPU while others work there, beside those that it has in any case.

        A copy keeps its weights, and an engine that does not sleep its weights and its cache. Shape as `resident_bytes`.

        Args:
            passing_bytes: As `left_bytes` has it.
        """
        if self.job.engines.sleeps:
            return np.full_like(resident_bytes, move.extra_bytes if apart else 0)
        sizes = (move.extra_bytes, move.synced_bytes, move.spared_bytes)
        left = self.left_bytes(replicas, resident_bytes, *sizes, passing_bytes)
        return move.extra_bytes + self._least_filled(replicas, resident_bytes, left)

    def _least_filled(
        self, replicas: Replicas, resident_bytes: Floats, left_bytes: Floats
    ) -> Floats:
        """Return the least bytes of a cache that is given what `left_bytes` has. Shape as `resident_bytes`.

        Of residents, those that lay there when an engine started may go off it: all of them at most.
        """
        share, cache = self.engine.share, left_bytes
        if share.counts_others == "started":
            cache = cache - resident_bytes
        if not share.fills:
            cache = np.minimum(cache, replicas.useful_bytes)
        return np.rint(np.maximum(cache, replicas.least_bytes))

    def bounds(self, replicas: Replicas, cache_bytes: Floats) -> Floats:
        """Return seconds that generation cannot beat with caches of these sizes."""
        if not self._is_continuous(replicas):
            return np.array([self.seconds(replicas, each) for each in cache_bytes])
        blocks, known = np.floor(cache_bytes / replicas.block_bytes).tolist(), replicas.bounds
        new = [each for each in dict.fromkeys(blocks) if each not in known]
        if new:
            known.update(zip(new, self._bounds(replicas, np.array(new)).tolist(), strict=True))
        return np.array([known[each] for each in blocks])

    def _bounds(self, replicas: Replicas, blocks: Floats, *, waits: bool = False) -> Floats:
        """Return what `bounds` says of caches of so many blocks, by an engine's steps.

        Args:
            waits: Whether sequences may wait for one to end, though the running limit lets all run.
        """
        steps = self._steps(replicas)
        assert isinstance(steps, EngineSteps), "other engines' generations are played"
        local = rank_sequences(replicas.layout.dp, self.job.workload, trains=False)
        running = min(replicas.layout.max_running, local, self._most_running)
        placed = self._placed(replicas.layout, replicas.site)
        times = times_of(placed)
        asked = BoundedSettings(running, replicas.state_blocks, waits)
        each = [
            least_seconds(steps, one.load, one.asked(asked), blocks) * times + one.outside_seconds
            for one in self._loads_of(replicas.layout.dp, running)
        ]
        whole = np.max(each, axis=0) + self._call_seconds(placed)
        return np.asarray(whole * self.task.batches)

    def _is_continuous(self, replicas: Replicas) -> bool:
        return isinstance(self._steps(replicas), EngineSteps)

    def _call_seconds(self, placed: PlacedTask) -> float:
        """Return the seconds of a framework's call, which no layout changes."""
        if placed.framework.runs:
            return 0.0
        return call_of(placed).seconds * times_of(placed, CALL)

    def tighter(self, replicas: Replicas, cache_bytes: float) -> tuple[float, bool]:
        """Return a tighter bound on what generation takes, and whether it is exact.

        It comes from a cache that is a little larger, until one so near was played.
        """
        whole = replicas.useful_bytes
        if not self._is_continuous(replicas) or cache_bytes >= whole:
            return self.seconds(replicas, cache_bytes), True
        power = math.floor(math.log(whole / cache_bytes) / math.log(CACHE_STEP))
        near = whole / CACHE_STEP**power
        played = self._larger(replicas, cache_bytes)
        if played is None or played[0] > self._blocks(replicas, near):
            return self.seconds(replicas, near) * (1 - PREEMPTION_NOISE_FRACTION), False
        return self.seconds(replicas, cache_bytes), True

    def known_bound(self, replicas: Replicas, cache_bytes: float) -> float:
        """Return the bound that generations with larger caches give; 0 if none was played."""
        played = self._larger(replicas, cache_bytes)
        return played[1] * (1 - PREEMPTION_NOISE_FRACTION) if played else 0.0

    def _larger(self, replicas: Replicas, cache_bytes: float) -> tuple[int, float] | None:
        """Return the blocks and seconds of the smallest cache played that is no smaller."""
        sizes = self._sizes.get((replicas.layout, self._bare(replicas.site)), [])
        place = bisect.bisect_left(sizes, (self._blocks(replicas, cache_bytes), 0.0))
        return sizes[place] if place < len(sizes) else None

    def _blocks(self, replicas: Replicas, cache_bytes: float) -> int:
        return int(cache_bytes // replicas.block_bytes) if replicas.block_bytes else 0

    def key(self, replicas: Replicas, cache_bytes: float) -> tuple[TaskPlan, Site, int]:
        """Return what generation's seconds depend on: with equal keys it is played once."""
        return replicas.layout, self._bare(replicas.site), self._blocks(replicas, cache_bytes)

    def seconds(self, replicas: Replicas, cache_bytes: float) -> float:
        """Return what generation takes with a cache of this size."""
        key = self.key(replicas, cache_bytes)
        if key not in self._seconds:
            self.played += 1
            seconds = self._seconds[key] = self._play(replicas, cache_bytes)
            bisect.insort(self._sizes.setdefault(key[:2], []), (key[2], seconds))
        return self._seconds[key]

    def _play(self, replicas: Replicas, cache_bytes: float) -> float:
        placed = self._placed(replicas.layout, replicas.site)
        return task_cost(placed, cache_bytes).total.seconds

    def _described(self, layout: TaskPlan, site: Site) -> Replicas:
        placed = self._placed(layout, site)
        useful = useful_kv_bytes(begun(placed))  # of all that run, those beyond a batch among them
        return Replicas(
            layout=layout,
            site=site,
            working_bytes=generation_working_bytes(placed),
            weight_bytes=generation_weight_bytes(placed),
            least_bytes=least_kv_bytes(placed),
            useful_bytes=useful,
            block_bytes=kept_block_bytes(placed),
            state_blocks=placed.state_blocks,
        )

    def _placed(self, layout: TaskPlan, site: Site) -> PlacedTask:
        return PlacedTask(self.task, layout, site, self.job, self.facts)

    def _steps(self, replicas: Replicas) -> object:
        layout, site = replicas.layout, self._bare(replicas.site)
        key = (cut_of(layout), site)
        if key not in self._clocks:  # by the layout's cut alone: settings take long to hash
            self._clocks[key] = steps_of(self._placed(layout, site))
        return self._clocks[key]

    def _bare(self, site: Site) -> Site:
        """Return a site without its size, which matters to engines that gather weights over it."""
        if site not in self._bare_sites:
            whole = self.engine.gathers_weights
            self._bare_sites[site] = site if whole else replace(site, gpus=site.gpus_per_node)
        return self._bare_sites[site]

    def _loads_of(self, replicas: int, running: int) -> list[BoundingLoad]:
        if self.job.environments:
            if (replicas, 0) not in self._loads:
                self._loads[replicas, 0] = episode_loads(self.job, self.engine, replicas)
            return self._loads[replicas, 0]
        wave = running if waits(self.engine.batching) else 0
        if (replicas, wave) not in self._loads:
            statistics = statistics_of(self.job.workload)
            together = self.job.workload.samples_per_prompt
            shares = longest_shares(statistics, replicas, together, wave)
            samples = together if self.engine.shares_prompts else 1
            block = self.engine.kv_block_tokens
            loads = (load_of(*share, samples, block) for share in shares)
            self._loads[replicas, wave] = [BoundingLoad(load) for load in loads]
        return self._loads[replicas, wave]

    @property
    def _most_running(self) -> int:
        """Return the sequences of which each takes a token of a step's budget."""
        limited = self.engine.batching == "mixed"
        return self.engine.max_batched_tokens if limited else self.job.workload.sequences


class FreeGenerations(GenerationTable):
    """Say which generations have room on sites: none takes a second, and nothing is played."""

    def _least_of(self, alike: list[Replicas]) -> float:
        return 0.0 if alike else math.inf

    def _priced(self, brought: UnpricedMove) -> WeightMove:
        return WeightMove(brought.transition.name, 0.0, brought.extra_bytes, brought.peak_bytes)

    def bounds(self, replicas: Replicas, cache_bytes: Floats) -> Floats:
        """Return no seconds, of any cache. Shape as `cache_bytes`."""
        del replicas
        return np.zeros(len(cache_bytes))

    def seconds(self, replicas: Replicas, cache_bytes: float) -> float:
        """Return no seconds."""
        del replicas, cache_bytes
        return 0.0

    def tighter(self, replicas: Replicas, cache_bytes: float) -> tuple[float, bool]:
        """Return no seconds, which are exact."""
        del replicas, cache_bytes
        return 0.0, True


def of_any_lengths(space: LayoutSpace) -> LayoutSpace:
    """Return a space in which weights move as in another, with lengths that jobs which differ in theirs have in common.

    Weights have the bytes that the model and its layouts say, and take their time on links and memory alone
    (`rlplan.simulator.costs.syncs`): lengths are read only where a framework's host works on the batch meanwhile. Such a
    space stays as it is, and so does one whose work has more than prompts and responses.
    """
    job = job_of_any_lengths(space.job)
    if job is space.job or not space.facts.framework(job.framework).runs:
        return space
    return replace(space, job=job)


class WeightMoves:
    """List the transitions that bring weights to layouts of generation.

    Args:
        transition: The only one where it serves, on one pool or between two, if the user pinned it; else
            the job's framework says it.
        bucket_bytes: Of all plans: weights that are under way at a time, where that is said.

    Attributes:
        transition: The only one on one pool; None tries all that are nobody's own.
        copied: How weights get to a copy on another pool.
        brought: Those from a sharding to a cut on a site, with what they hold.
        priced: Of those that leave room, by their names, the ones that no other beats.
    """

    def __init__(
        self,
        space: LayoutSpace,
        transition: TransitionName | None = None,
        bucket_bytes: int | None = None,
    ) -> None:
        self.space, sync, self.bucket_bytes = space, space.job.weight_sync, bucket_bytes
        self.transition: TransitionName | None = sync.shared_pool
        self.copied: TransitionName = sync.between_pools or TWO_COPIES
        if transition is not None and TRANSFERS.load(transition).on_one_pool:
            self.transition = transition
        if transition is not None and TRANSFERS.load(transition).between_pools:
            self.copied = transition
        self.brought: dict[Hashable, list[UnpricedMove]] = {}
        self.priced: dict[Hashable, list[WeightMove]] = {}
        self._synced: dict[Hashable, float] = {}
        self._updates: dict[tuple[WeightSharding, Site], PlacedTask] = {}
        self._shards: dict[tuple[WeightSharding, Site], int] = {}
        self._sent: dict[tuple[WeightSharding, Site], int] = {}
        self._copies: dict[Hashable, PlacedTask] = {}
        self._uncut: dict[Site, PlacedTask] = {}
        self._transitions: dict[tuple[int, ...], tuple[TransitionName, ...]] = {}

    def bringing(
        self, sharding: WeightSharding, layout: TaskPlan, site: Site
    ) -> list[UnpricedMove]:
        """Return the ways from a sharding on a site to a layout there, with what they hold."""
        trained = self._trained(sharding, site)
        train = trained.layout
        cuts = (train.tp, train.pp, layout.tp, layout.pp)
        if cuts not in self._transitions:  # found by looking into a folder
            named = () if self.transition is None else (self.transition,)
            self._transitions[cuts] = transitions(train, layout, named)
        names = self._transitions[cuts]
        if self.transition is not None:
            names = tuple(name for name in names if name == self.transition)
        placed = self._generating(layout, site)
        every = (
            PlacedTransition(name, trained, placed, same_pool=True, bucket_bytes=self.bucket_bytes)
            for name in names
        )
        return [UnpricedMove.of(each) for each in every]

    def sync_seconds(self, generate: TaskPlan, train_site: Site, site: Site) -> float:
        """Return the seconds of bringing weights to a copy on another pool; by a method, the least of any cut."""
        key = (cut_of(generate), train_site, site)
        if key not in self._synced:
            transition = self._copying(generate, train_site, site)
            by_method = transition.sheet.method is not None
            cost = (
                least_sync_seconds(transition) if by_method else transition_cost(transition).total
            )
            self._synced[key] = cost.seconds
        return self._synced[key]

    def copied_peak_bytes(self, replicas: Replicas) -> int:
        """Return what a copy on a pool of its own takes of each GPU when weights come."""
        moved = self._copying(replicas.layout, replicas.site, replicas.site)
        terms = bucket_terms(moved, sends=False) if moved.streams else {}
        return replicas.weight_bytes + sum(terms.values())

    def copied_synced_bytes(self, replicas: Replicas) -> int:
        """Return what weights that come to a copy on a pool of its own take beside it and its cache."""
        moved = self._copying(replicas.layout, replicas.site, replicas.site)
        return synced_bytes(moved)

    def sent_bytes(self, sharding: WeightSharding, site: Site) -> int:
        """Return what weights that are sent to another pool take of each GPU of their own, beside what stays there."""
        key = (sharding, site)
        if key not in self._sent:
            engine = self.space.engine_of(self.space.generate_task())
            copy = self._generating(TaskPlan(pool="", engine=engine), site)
            moved = self._to_other_pool(self._trained(*key), copy)
            terms = bucket_terms(moved, sends=True) if moved.streams else {}
            several = len({group.gpu for group in self.space.job.cluster}) > 1
            # The context is that of the copy's device, which may be another.
            self._sent[key] = sum(terms.values()) - (terms.get(CONTEXT, 0) if several else 0)
        return self._sent[key]

    def spared_bytes(self, replicas: Replicas) -> int:
        """Return the context that an engine alone on a pool has among what lies beside its share."""
        moved = self._copying(replicas.layout, replicas.site, replicas.site)
        return moved.generate.device.context_bytes if has_own_context(moved) else 0

    def _trained(self, sharding: WeightSharding, site: Site) -> PlacedTask:
        """Return the update that leaves weights in a sharding on a site."""
        key = (sharding, site)
        if key not in self._updates:
            layout = TaskPlan(
                pool="",
                engine=self.space.engine_of(self._update),
                tp=sharding.tp,
                pp=sharding.pp,
                cp=sharding.cp,
                ep=sharding.ep,
                expert_tp=sharding.expert_tp or None,
                dp=site.gpus // (sharding.tp * sharding.pp * sharding.cp),
                zero=sharding.sharded,
                offload=sharding.away,
            )
            self._updates[key] = PlacedTask(
                self._update, layout, site, self.space.job, self.space.facts
            )
        return self._updates[key]

    def trained_bytes(self, sharding: WeightSharding, site: Site) -> int:
        """Return the weights of a GPU's shard in training, in bytes."""
        key = (sharding, site)
        if key not in self._shards:
            self._shards[key] = train_shard_bytes(self._trained(sharding, site))
        return self._shards[key]

    def _generating(self, layout: TaskPlan, site: Site) -> PlacedTask:
        """Return a generating task in a layout's cut on a site: it knows its weights for all transitions."""
        key = (cut_of(layout), site)
        if key not in self._copies:
            self._copies[key] = self._placed(layout, site)
        return self._copies[key]

    @cached_property
    def _update(self) -> Task:
        """Return the task whose weights generate."""
        tasks = self.space.tasks
        return next(task for task in tasks if task.kind == "train" and task.role == ACTOR)

    def _copying(self, generate: TaskPlan, train_site: Site, site: Site) -> PlacedTransition:
        """Return how weights come to a copy from where they train uncut."""
        if train_site not in self._uncut:
            train = TaskPlan(pool="", engine=self.space.engine_of(self._update))
            self._uncut[train_site] = PlacedTask(
                self._update, train, train_site, self.space.job, self.space.facts
            )
        trained, copy = self._uncut[train_site], self._generating(generate, site)
        return self._to_other_pool(trained, copy)

    def _to_other_pool(self, train: PlacedTask, copy: PlacedTask) -> PlacedTransition:
        return PlacedTransition(
            self.copied, train, copy, same_pool=False, bucket_bytes=self.bucket_bytes
        )

    def _placed(self, layout: TaskPlan, site: Site) -> PlacedTask:
        space = self.space
        return PlacedTask(space.generate_task(), layout, site, space.job, space.facts)
