"""What a search looks through: a job's models, the shares that they can get, tables of costs."""

import math
import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, begun_of, rounds_together, tasks_of
from rlplan.files.frozen import FrozenDict
from rlplan.job import NO_SPECS, Job, Specs
from rlplan.plan import TaskDraft
from rlplan.planner.exact.generation_bounds import (
    BoundedSettings,
    Load,
    batch_load,
    least_seconds,
    load_of,
)
from rlplan.planner.exact.generations import (
    FreeGenerations,
    GenerationTable,
    OptionRows,
    Replicas,
    WeightMoves,
    cut_of,
    of_any_lengths,
)
from rlplan.planner.exact.score import HostWorkers, Score
from rlplan.planner.layouts.layout_space import LayoutSpace
from rlplan.planner.layouts.listing import KeptListings
from rlplan.planner.layouts.option_table import OptionTable, SearchCounts
from rlplan.planner.layouts.pool_rows import PoolTable, roles_of
from rlplan.planner.layouts.settings import is_power, packs
from rlplan.planner.placements.allocations import (
    Share,
    devices_of,
    gpus_of,
    ideal_site,
    rented_cores,
    shares_of,
)
from rlplan.planner.placements.partitions import GENERATION, ColocatedSet
from rlplan.planner.plans.assembly import Choice, host_layout, host_pool
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.requests.schedules import Schedule
from rlplan.planner.requests.specs import usable_fraction
from rlplan.profiles.facts import Facts
from rlplan.profiles.tables.remembered import LeastRecentlyUsed
from rlplan.results.forecast import InfeasiblePlacement
from rlplan.rules.batches import rank_sequences
from rlplan.simulator.asynchronous.setting import least_prompts
from rlplan.simulator.columns import Floats
from rlplan.simulator.costs.taskcost import data_bytes, times_of, transfer_cost
from rlplan.simulator.generation.generating import begun
from rlplan.simulator.generation.over_provisioning import (
    PLAYED_SEQUENCES,
    cost_until_enough,
    kept_of,
)
from rlplan.simulator.generation.prices import EngineSteps
from rlplan.simulator.generation.shares import (
    ORDER_SEED,
    evenly_spread,
    first_replicas_rows,
    longest_shares,
)
from rlplan.simulator.placed import PlacedTask, Site, host_site
from rlplan.simulator.stages import task_cost
from rlplan.simulator.workload import learnt_work, statistics_of
from rlplan.transfers import TransitionName
from rlplan.workload import Empirical, Workload, longest, mean_length


class StreamTable(GenerationTable):
    """Bound generation on sites, each layout and size of cache once."""

    def __init__(self, options: OptionTable, ways: WeightMoves) -> None:
        super().__init__(options, ways)
        work = options.space.priced.workload
        statistics = statistics_of(work)
        (share, *_) = longest_shares(statistics, 1, work.samples_per_prompt)
        samples = work.samples_per_prompt if self.engine.shares_prompts else 1
        self._batch: Load | None = load_of(*share, samples, self.engine.kv_block_tokens)
        if work.environments:
            self._batch = batch_load(self.job, self.engine)
        self._tokens = tuple(np.sort(np.array(tokens)) for tokens in share)
        ends = [max(zip(*reversed(share), strict=True)), min(zip(*reversed(share), strict=True))]
        # Each turn's first token comes out of its prefill.
        turns = max((longest(each.turns) for each in work.environments), default=1)
        self._ends = [
            load_of((prompt,), (max(1, response + 1 - turns),)) for response, prompt in ends
        ]
        self._alone: dict[Hashable, tuple[float, float]] = {}

    def _generated(self) -> tuple[Task, Job]:
        """Return what generates as it stands: samples stream, whatever is asked for at once."""
        return self.task, self.job

    def bounds(self, replicas: Replicas, cache_bytes: Floats) -> Floats:
        """Return seconds that a batch cannot beat in the long run; 0 of engines without running batches.

        And where limits end episodes.
        """
        if not self._is_continuous(replicas) or self._batch is None:
            return np.zeros(len(cache_bytes))
        # More than one batch is under way, so that more cache than one can use may be of use.
        whole = self.facts.device(replicas.site.device).sheet.memory_bytes
        most = np.where(cache_bytes >= replicas.useful_bytes, whole, cache_bytes)
        return super().bounds(replicas, most)

    def _bounds(self, replicas: Replicas, blocks: Floats, *, waits: bool = True) -> Floats:
        steps = self._steps(replicas)
        assert isinstance(steps, EngineSteps), "other engines are not bounded"
        assert self._batch is not None, "what limits end is not bounded"
        running = min(replicas.layout.max_running, self._most_running)
        asked = BoundedSettings(running, replicas.state_blocks, waits=waits, endless=True)
        times = times_of(self._placed(replicas.layout, replicas.site)) * self.task.batches
        return np.asarray(
            least_seconds(steps, self._batch, asked, blocks) * times / replicas.layout.dp
        )

    def alone_seconds(self, replicas: Replicas) -> tuple[float, float]:
        """Return what the longest and the shortest response take at least, each alone on its replica.

        Where responses are dropped, the longest ones are not waited for.
        """
        key = (cut_of(replicas.layout), replicas.site)
        if key not in self._alone:
            steps = self._steps(replicas)
            longest = shortest = 0.0
            if isinstance(steps, EngineSteps) and self._batch is not None:
                times = times_of(self._placed(replicas.layout, replicas.site))
                longest, shortest = (
                    float(least_seconds(steps, load, BoundedSettings(1), np.array([np.inf]))[0])
                    * times
                    for load in self._ends
                )
            waits = self.job.workload.over_provisioning == 1
            self._alone[key] = (longest if waits else 0.0, shortest)
        return self._alone[key]

    def last_share(self, pieces: int) -> float:
        """Return the least share of a batch's tokens that one of so many equal pieces of it has."""
        work = self.options.space.priced.workload
        unit = work.samples_per_prompt if load_algorithm(self.job.algorithm).groups else 1
        units = work.sequences // unit
        count = units // min(pieces, units) * unit
        least = sum(float(tokens[:count].sum()) for tokens in self._tokens)
        return least / sum(float(tokens.sum()) for tokens in self._tokens)

    def last_part_share(self, parts: int) -> float:
        """Return the least share of a batch's tokens that the last of so many parts of it has, each learnt from at once."""
        work = self.options.space.priced.workload
        unit = work.samples_per_prompt if load_algorithm(self.job.algorithm).groups else 1
        turns = sum(each.share * mean_length(each.turns) for each in work.environments) or 1.0
        prompts = min(work.prompts, least_prompts(work, turns))
        return self.last_share(pieces_within(parts, prompts * work.samples_per_prompt // unit))

    def least_bound(self, replicas: Replicas) -> float:
        """Return seconds that a layout cannot beat, however large its cache."""
        return self.bound_alone(replicas)

    def seconds(self, replicas: Replicas, cache_bytes: float) -> float:
        """Return the bound: nothing is played."""
        return float(self.bounds(replicas, np.array([cache_bytes]))[0])

    def tighter(self, replicas: Replicas, cache_bytes: float) -> tuple[float, bool]:
        """Return the bound, which nothing but a simulation makes tighter."""
        return self.seconds(replicas, cache_bytes), True

    def known_bound(self, replicas: Replicas, cache_bytes: float) -> float:
        """Return nothing: nothing is played."""
        del replicas, cache_bytes
        return 0.0


def pieces_within(parts: int, least: int) -> int:
    """Return of how many equal pieces none is larger than the last of some parts of a batch, in units that are learnt from.

    Of n units the last part has floor(n / parts) at the least, where pieces are single units and those left over are in
    other parts (`rlplan.simulator.asynchronous.setting`). That is no less than n / parts - (parts - 1) / parts, so the
    share falls with n towards its least where as few are played as may be. Fewer units than parts are a part each.

    Args:
        least: Units that are played at the least.
    """
    if least < parts:
        return max(1, least)
    return math.ceil(parts * least / (least - parts + 1))


# Orders of a batch's responses: that of whole batches first. Streamed batches come in an order after another,
# and chance decides which responses share a prompt.
ORDERS = 8


def priced_job(job: Job) -> Job:
    """Return the job whose work no choice of what is learnt from undercuts; itself where nothing is dropped."""
    work = job.workload
    if not work.drops_responses:
        return job
    lengths = Empirical(values=tuple(least_responses(job).astype(int).tolist()))
    work = replace(work, response_tokens=lengths, over_provisioning=1.0, over_sampling=1.0)
    return replace(job, workload=work)


def least_responses(job: Job) -> Floats:
    """Return the tokens of responses that no choice undercuts, in order. Shape (sequences of the batch,)."""
    kept, wanted = kept_of(job), job.workload.sequences
    least = np.full(wanted, np.inf)
    for responses in _orders(job):
        units = responses[: len(responses) // kept.unit * kept.unit].reshape(-1, kept.unit)
        by_rank = np.sort(np.sort(units, axis=1)[:, : kept.needed], axis=0)
        shortest = np.sort(by_rank[: kept.done(len(units))], axis=None)
        least = np.minimum(least, shortest[np.arange(wanted) * len(shortest) // wanted])
    return least


def _orders(job: Job) -> Iterator[Floats]:
    """Yield the responses of begun batches, in tokens, those of a prompt after one another."""
    whole = begun_of(job)
    for seed in range(ORDER_SEED, ORDER_SEED + ORDERS):
        _, responses = evenly_spread(whole, np.random.default_rng(seed))
        yield responses
        if seed > ORDER_SEED or whole.sequences <= PLAYED_SEQUENCES:
            continue
        most = min(job.gpus, whole.sequences)
        for count in sorted({_standing_for_all(whole, each) for each in range(1, most + 1)}):
            yield responses[:count]


def _standing_for_all(whole: Workload, replicas: int) -> int:
    """Return how many responses the first replicas have that stand for all of so many."""
    samples = whole.samples_per_prompt
    rows = first_replicas_rows(whole.sequences, replicas, samples, PLAYED_SEQUENCES)
    return sum(map(len, rows))


class BegunTable(GenerationTable):
    """Cost generation on sites, each layout and size of cache once."""

    def __init__(self, options: OptionTable, ways: WeightMoves) -> None:
        super().__init__(options, ways)
        work = options.space.priced.workload
        each, responses = evenly_spread(work, np.random.default_rng(ORDER_SEED))
        prompts = np.repeat(each, work.samples_per_prompt).astype(int)
        samples = work.samples_per_prompt if self.engine.shares_prompts else 1
        tokens = responses.astype(int)
        self._batch = load_of(
            tuple(prompts.tolist()), tuple(tokens.tolist()), samples, self.engine.kv_block_tokens
        )
        self._longest = load_of((int(prompts.min()),), (int(tokens.max()),))

    def _bounds(self, replicas: Replicas, blocks: Floats, *, waits: bool = True) -> Floats:
        steps = self._steps(replicas)
        assert isinstance(steps, EngineSteps), "other engines' generations are played"
        layout = replicas.layout
        local = rank_sequences(layout.dp, begun_of(self.job), trains=False)
        asked = BoundedSettings(
            min(layout.max_running, local, self._most_running),
            replicas.state_blocks,
            waits,
            endless=True,
        )
        together = least_seconds(steps, self._batch, asked, blocks) / layout.dp
        longest = least_seconds(steps, self._longest, BoundedSettings(1), np.array([np.inf]))
        placed = self._placed(layout, replicas.site)
        whole = np.maximum(together, longest) * times_of(placed) + self._call_seconds(placed)
        return np.asarray(whole * self.task.batches)

    def _play(self, replicas: Replicas, cache_bytes: float) -> float:
        placed = self._placed(replicas.layout, replicas.site)
        cost = task_cost(begun(placed), cache_bytes)
        return cost_until_enough(cost, placed, cache_bytes).total.seconds


@dataclass(frozen=True, slots=True)
class Chosen:
    """Hold the best choice of a placement with its value, and what no other choice there is below."""

    choice: Choice
    value: float
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Hold what a search found out, without forecasts: it holds of every search that weighs the same.

    Attributes:
        chosen: Of every placement with a plan, the best first.
        bound: No plan of any placement is worth less.
        infeasible: Placements of which nothing fits.
        unseen: Those that there was no time for.
        left_out: Those whose plans cannot be among as many of the best as were asked for.
        considered, pruned: What was looked at, and dropped.
    """

    chosen: tuple[Chosen, ...]
    bound: float
    infeasible: tuple[InfeasiblePlacement, ...] = ()
    unseen: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    considered: FrozenDict[str, int] = FrozenDict()
    pruned: FrozenDict[str, int] = FrozenDict()


# Of one job under the same pins an objective and limits are asked, and prices are changed.
REMEMBERED_ENDINGS = 8


@dataclass(frozen=True, slots=True, eq=False)
class KnownWays:
    """Hold what searches of the same cluster with the same pins find out of ways to generate.

    Attributes:
        syncs: Seconds of bringing weights to copies, by sizes and site.
        least_generations: The least seconds of generation, by where weights train and by schedule.
        ways: Ways to generate on a share with the rest of a pool.
        set_shares: The shares on which each role of a set may fit.
        endings: How searches ended, by what they weigh (`Space.weighed`), those asked last.
    """

    syncs: dict[tuple[int, int, int, int, int | None, Site], float] = field(default_factory=dict)
    least_generations: dict[Hashable, float] = field(default_factory=dict)
    ways: dict[Hashable, list[OptionRows]] = field(default_factory=dict)
    set_shares: dict[ColocatedSet, tuple[Share, ...]] = field(default_factory=dict)
    endings: LeastRecentlyUsed[Hashable, Ending] = field(
        default_factory=lambda: LeastRecentlyUsed(REMEMBERED_ENDINGS)
    )


# Of one job a user pins this and that and changes the number of nodes: what is known of the latest is kept, so that a server does not grow with questions.
REMEMBERED_PINS = 8


@dataclass(frozen=True, eq=False)
class Tables:
    """Hold what roles, sets and generations of a job cost; the facts are kept, so are identities in what they depend on.

    Attributes:
        known: What follows from these on each of the latest clusters under its pins, the last asked last.
    """

    facts: Facts
    options: OptionTable
    pools: PoolTable
    generations: GenerationTable
    known: LeastRecentlyUsed[Hashable, KnownWays] = field(
        default_factory=lambda: LeastRecentlyUsed(REMEMBERED_PINS)
    )

    @cached_property
    def streams(self) -> StreamTable:
        """Return what generations cost whose responses stream, which most searches do not ask for."""
        return StreamTable(self.options, self.generations.ways)


def costed_job(job: Job) -> Job:
    """Return the job with the usual values of what changes nothing that a layout takes: seconds or bytes.

    Names are for people; limits and prices say which plan is better; runs last as many iterations as are asked for. Prices
    of nodes that come and go are theirs, and stay.
    """
    cluster = tuple(
        group if group.spot is not None else replace(group, usd_per_gpu_hour=None)
        for group in job.cluster
    )
    return replace(
        job,
        name="job",
        objective="throughput",
        specs=NO_SPECS,
        iterations=None,
        cluster=cluster,
    )


def job_of_tables(job: Job) -> Job:
    """Return a job whose tables of costs hold for another one: each group of its cluster a single node.

    How many nodes there are decides which shares sets can get, not what a role takes on a share, since that is asked of the
    share's site; nor do a host's cores and memory, which plans are held to. So clusters of the same nodes share what they cost. They decide something where
    environments hold cores, where all GPUs together limit how experts are spread, where what is learnt from depends on the replicas, and where
    nodes come and go. So does the number of a device's GPUs unless it is a power of two: on all of them other numbers of
    copies are listed than on as many of a larger cluster (`PoolCuts.lists_copies`).
    """
    experts = any(job.architecture(role).num_experts for role in job.models)
    if experts or job.environments or job.workload.drops_responses or job.has_spot:
        return job
    cluster = (replace(group, cpu_cores=None, host_memory_bytes=None) for group in job.cluster)
    same = replace(job, cluster=tuple(cluster))
    single = replace(same, cluster=tuple(replace(group, nodes=1) for group in same.cluster))
    return single if all(map(is_power, (*gpus_of(same), *gpus_of(single)))) else same


# Fronts over several objectives and limits search one job again and again, a framework's in each of its ways.
REMEMBERED_JOBS = 8
_remembered: LeastRecentlyUsed[Hashable, Tables] = LeastRecentlyUsed(REMEMBERED_JOBS)


@dataclass(slots=True)
class _AskedFacts:
    """Hold facts with what was asked of them.

    Attributes:
        jobs: How many had their costs asked.
        moves: How weights move, by all that decides it.
        listings: Which layouts tasks have, by all that decides it.
    """

    facts: Facts
    jobs: int = 0
    moves: dict[Hashable, WeightMoves] = field(default_factory=dict)
    listings: KeptListings = field(default_factory=dict)

    def moves_in(
        self, space: LayoutSpace, transition: TransitionName | None, bucket_bytes: int | None
    ) -> WeightMoves:
        """Return how weights move in a space of these facts; jobs that differ in their lengths share the answer."""
        space = of_any_lengths(space)
        named = {task.name: space.engine_of(task) for task in space.tasks if task.has_model}
        key = (space.job, space.tasks, FrozenDict(named), transition, bucket_bytes, space.is_priced)
        if key not in self.moves:
            self.moves[key] = WeightMoves(space, transition, bucket_bytes)
        return self.moves[key]


# What facts remember grows with each job that is asked, so after so many others take their place.
JOBS_OF_FACTS = 8
_asked_facts: LeastRecentlyUsed[Hashable, _AskedFacts] = LeastRecentlyUsed(REMEMBERED_JOBS)


def _known_facts(facts: Facts) -> _AskedFacts:
    """Return facts that answer alike and that this thread's searches asked of other jobs, where there are any.

    What a product of matrices or an exchange takes depends on no job: one with other lengths asks much of it again.
    """
    key = (threading.get_ident(), facts.content)
    asked = _asked_facts.get(key)
    if asked is None or asked.jobs == JOBS_OF_FACTS:
        asked = _AskedFacts(facts)
        _asked_facts.keep(key, asked)
        _adopted.append(facts)
    asked.jobs += 1
    return asked


# Facts that searches ask or asked, until nothing that is kept rests on them.
_adopted: list[Facts] = []
_guard_of_adopted = threading.Lock()


def _forget_unasked() -> None:
    """Forget what facts know on which nothing that is kept rests any more: tasks and plans that others hold keep them alive."""
    with _guard_of_adopted:
        kept = {id(each.facts) for each in _remembered.values()}
        kept |= {id(each.facts) for each in _asked_facts.values()}
        left = [each for each in _adopted if id(each) not in kept]
        _adopted[:] = [each for each in _adopted if id(each) in kept]
    for facts in left:
        facts.forget()


def forget() -> None:
    """Forget what earlier searches of all threads asked, as if the process had just begun."""
    _remembered.clear()
    _asked_facts.clear()
    _forget_unasked()


@dataclass(frozen=True, eq=False)
class Space:
    """Hold a job's space of plans with the tables of what their parts cost.

    Attributes:
        drafts: Parts of tasks' layouts that the user pinned.
        specs: Limits that plans must keep.
        transition: The only one where it serves, on one pool or between two, if the user pinned it.
        pinned: What else the user pinned: pools.
        is_priced: Whether plans have seconds; else they are told apart by memory alone.
    """

    job: Job
    facts: Facts
    drafts: Mapping[str, TaskDraft]
    objective: str
    specs: Specs
    transition: TransitionName | None = None
    pinned: Pinned = NOTHING_PINNED
    is_priced: bool = True
    # What sets beside the generating one can do, every role at its best, by schedule and sets.
    rests: dict[Hashable, Any] = field(default_factory=dict)
    _sites: dict[Share, Site] = field(default_factory=dict)
    _fetches: dict[str, float] = field(default_factory=dict)
    _hosted: dict[int, dict[Task, float]] = field(default_factory=dict)

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """Return the job's tasks."""
        return tasks_of(load_algorithm(self.job.algorithm), self.job)

    @cached_property
    def tally(self) -> SearchCounts:
        """Return the counts of what was looked at and dropped."""
        return SearchCounts()

    @cached_property
    def _tables(self) -> "Tables":
        """Return the tables of costs, which searches of one job share whatever they minimise and whatever GPUs cost.

        Those of one thread: tables fill as they are asked, and two searches at once would fill the same ones.
        """
        usable = usable_fraction(self.specs)
        job = job_of_tables(costed_job(self.job))
        arranged = self.pinned.arranged
        buckets, gpus = self.pinned.bucket_bytes, self.pinned.pool_gpus
        asked = (FrozenDict(self.drafts), self.transition, buckets, gpus, arranged)
        key = (threading.get_ident(), self.facts.content, job, usable, asked, self.is_priced)
        tables = _remembered.get(key)
        if tables is None:
            tables = self._new_tables(job, usable)
            _remembered.keep(key, tables)
            _forget_unasked()
        return tables

    def _new_tables(self, job: Job, usable_fraction: float) -> "Tables":
        """Return tables of a job's costs that nothing was asked of yet."""
        asked = _known_facts(self.facts)
        facts = asked.facts
        layouts = LayoutSpace(
            job,
            priced_job(job),
            load_algorithm(job.algorithm),
            self.tasks,
            facts,
            self.drafts,
            usable_fraction,
            self.pinned.pool_gpus,
            self.pinned.arranged,
            self.is_priced,
        )
        options = OptionTable(layouts, asked.listings)
        begins_more = job.workload.drops_responses or rounds_together(job) > 1
        table = BegunTable if begins_more else GenerationTable
        table = table if self.is_priced else FreeGenerations
        moves = asked.moves_in(layouts, self.transition, self.pinned.bucket_bytes)
        generations = table(options, moves)
        return Tables(facts, options, PoolTable(options), generations)

    @cached_property
    def known(self) -> KnownWays:
        """Return what is known of ways to generate, which searches with the same tables and pins share."""
        known, key = self._tables.known, (self.pinned, costed_job(self.job).cluster)
        found = known.get(key)
        if found is None:
            found = KnownWays()
            known.keep(key, found)
        return found

    @cached_property
    def weighed(self) -> Hashable:
        """Return what decides how a search with the same tables and pins ends.

        A name decides nothing, and a price only where money is minimised or limited, or nodes come and go.
        """
        job, cluster = self.job, costed_job(self.job).cluster
        job = replace(job, name="job", cluster=job.cluster if self.score.counts_money else cluster)
        return self.objective, self.specs, job

    def words(self, schedules: Iterable[Schedule]) -> str:
        """Return in words what is searched: every answer says of it that its plan is the best one.

        Args:
            schedules: How iterations may follow each other.
        """
        engines, framework = self.job.engines, self.facts.framework(self.job.framework)
        trained = self.facts.engine(engines.train or "")
        modes = ", ".join(dict.fromkeys(each.mode for each in schedules))
        chosen = ["placements", "pool sizes", "TP", "PP", "CP", "EP", "ZeRO", "micro-batches"]
        if packs(trained, self.job):
            chosen.append("token budgets")
        chosen += ["recomputation", "off-loading", "running sequences", "orders"]
        named = f"{engines.train} and {engines.generate}"
        free, unsaid = (
            self.specs.memory_headroom_fraction,
            {"memory_headroom_fraction", "staleness"},
        )
        limits = [name for name in self.specs.given if name not in unsaid]
        parts = [
            f"{modes} plans of {framework.title} with {named} on up to {self.job.gpus} GPUs: {', '.join(chosen)}",
            *(["what is pinned kept"] if self.pinned.given else []),
            *([f"the limit of {', '.join(limits)} kept"] if limits else []),
            f"at least {free:.0%} of memory free" if free else "memory filled to the last byte",
        ]
        return "; ".join(parts)

    @property
    def priced(self) -> Job:
        """Return the job whose work costs are of: that which no plan undercuts."""
        return self.options.space.priced

    @property
    def options(self) -> OptionTable:
        """Return what roles can do."""
        return self._tables.options

    @property
    def pools(self) -> PoolTable:
        """Return what sets can do."""
        return self._tables.pools

    @property
    def asked_before(self) -> Facts:
        """Return facts that answer as the space's do, and know what earlier searches of the job asked."""
        return self._tables.facts

    @property
    def generations(self) -> GenerationTable:
        """Return how pools can generate."""
        return self._tables.generations

    def generations_in(self, schedule: Schedule) -> GenerationTable:
        """Return how pools can generate where iterations follow each other so."""
        return self.streams if schedule.streams else self.generations

    @property
    def streams(self) -> StreamTable:
        """Return how pools can generate where responses stream."""
        return self._tables.streams

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Return the cluster's devices."""
        return devices_of(self.job)

    @cached_property
    def limits(self) -> "np.typing.NDArray[np.int64]":
        """Return how many GPUs of each device there are."""
        return np.array(gpus_of(self.job), dtype=np.int64)

    @cached_property
    def score(self) -> Score:
        """Return what iterations are worth."""
        return Score(
            self.job, self.facts, self.objective, self.specs, self.devices, self.host_workers
        )

    @cached_property
    def host_workers(self) -> HostWorkers | None:
        """Return the processes of tasks without a model; None where there are no such tasks."""
        if all(task.has_model for task in self.tasks):
            return None
        if self.pinned.host is not None:
            counts = [np.full(gpus + 1, self.pinned.host.gpus) for gpus in self.limits[:1]]
            counts += [np.zeros(gpus + 1, dtype=np.int64) for gpus in self.limits[1:]]
            return HostWorkers(tuple(counts), self.pinned.host.gpus, self._host_total)
        counts = [
            np.array([rented_cores(self.job, {device: gpus}) for gpus in range(limit + 1)])
            for device, limit in zip(self.devices, self.limits.tolist(), strict=True)
        ]
        return HostWorkers(tuple(counts), self.job.workload.sequences, self._host_total)

    def _host_total(self, workers: int) -> float:
        return sum(self._host_seconds(workers).values())

    def _host_seconds(self, workers: int) -> dict[Task, float]:
        """Return the seconds of each task without a model on so many workers."""
        if workers not in self._hosted:
            host = self.pinned.host or replace(host_pool(self.job), gpus=workers)
            layout, site = host_layout(host), host_site(self.job, workers)
            hosted = (task for task in self.tasks if not task.has_model)
            placed = (PlacedTask(task, layout, site, self.priced, self.facts) for task in hosted)
            self._hosted[workers] = {each.task: task_cost(each).total.seconds for each in placed}
        return self._hosted[workers]

    @cached_property
    def _judging(self) -> tuple[Task, ...]:
        """Return the tasks without a model that wait for what is generated, and that updates wait for."""
        made = set(self.generations.task.outputs)
        hosted = (task for task in self.tasks if not task.has_model)
        prepare = (task for task in hosted if task.stage == "preparation")
        return tuple(task for task in prepare if made & set(task.inputs))

    @cached_property
    def judging_seconds(self) -> float:
        """Return the least seconds of what judges responses, one task after another: on most workers."""
        if self.host_workers is None:
            return 0.0
        seconds = self._host_seconds(self.host_workers.most)
        return sum(seconds[task] for task in self._judging)

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """Return every share that a set may get."""
        return shares_of(self.job)

    def device(self, share: Share) -> int:
        """Return the place of a share's device among the cluster's."""
        return self.devices.index(self.job.cluster[share.group].gpu)

    def site(self, share: Share) -> Site:
        """Return the site of a share at its best."""
        if share not in self._sites:
            self._sites[share] = ideal_site(self.job, share)
        return self._sites[share]

    def open_shares(self, members: ColocatedSet) -> tuple[Share, ...]:
        """Return the shares that the user leaves to a set, whether it fits there or not."""
        return self.pinned.shares(members, self.shares, self.job)

    def set_shares(self, members: ColocatedSet) -> tuple[Share, ...]:
        """Return the shares on which each role of a set can be laid out and may fit."""
        known = self.known.set_shares
        if members not in known:
            open_shares = self.open_shares(members)
            self.pools.prepare(members, [self.site(share) for share in open_shares])
            known[members] = tuple(
                share for share in open_shares if self.pools.least(members, self.site(share)).fits
            )
        return known[members]

    @cached_property
    def senders(self) -> tuple[Site, ...]:
        """Return where the actor may train that sends its weights to copies, each with the fastest network of all shares.

        Empty where no share that others may get too can hold it, of what the user pinned.
        """
        sites = [self.site(share) for share in self.set_shares(("actor",))]
        every = (self.site(share).inter_node_bytes_per_second for share in self.shares)
        fastest = max(every, default=0.0)
        each = (replace(site, inter_node_bytes_per_second=fastest) for site in sites)
        return tuple(dict.fromkeys(each))

    def arrival_seconds(self, members: ColocatedSet) -> float:
        """Return the least seconds until a set beside the generating one has its first data.

        Transfers into a pool go one after another, and no task begins before all its inputs are there.
        """
        names = set(roles_of(members))
        preparing = [t for t in self.tasks if t.role in names and t.stage == "preparation"]
        return min((self._fetch_seconds(task) for task in preparing), default=0.0)

    @cached_property
    def judging_arrival_seconds(self) -> float:
        """Return the least seconds until what judges responses has its data; it always runs elsewhere."""
        return min((self._fetch_seconds(task) for task in self._judging), default=0.0)

    def _fetch_seconds(self, task: Task) -> float:
        made = self.generations.task.outputs
        keys = [key for key in task.inputs if key in made]
        return sum(self.fetch_seconds(key) for key in keys)

    def fetch_seconds(self, key: str) -> float:
        """Return the least seconds of bringing a key's data from one pool to another."""
        if key not in self._fetches:
            self._fetches[key] = self._least_fetch(key)
        return self._fetches[key]

    def _least_fetch(self, key: str) -> float:
        one = [Site(device, 1, 1, np.inf) for device in self.devices]
        num_bytes = data_bytes((key,), learnt_work(self.priced.workload), self.priced.top_tokens)
        return min(transfer_cost(num_bytes, site, site, self.facts).seconds for site in one)


def generates_alone(members: ColocatedSet) -> bool:
    """Tell whether a set holds a copy that generates, whose weights are trained elsewhere."""
    return GENERATION in members
