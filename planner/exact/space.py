"""What a search looks through: a job's models, the shares that they can get, tables of costs."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from planner.exact.generation.begun_table import BegunTable
from planner.exact.generation.generations import GenerationTable
from planner.exact.generation.least_responses import priced_job
from planner.exact.generation.options import OptionRows
from planner.exact.generation.stream_table import StreamTable
from planner.exact.score import HostWorkers, Score
from planner.layouts.layout_space import LayoutSpace
from planner.layouts.option_table import OptionTable
from planner.layouts.pool_options import PoolTable
from planner.layouts.pool_rows import roles_of
from planner.layouts.role_options import Tally
from planner.layouts.settings import packs
from planner.placements.allocations import (
    Share,
    devices_of,
    gpus_of,
    ideal_site,
    rented_cores,
    shares_of,
)
from planner.placements.partitions import GENERATION, ColocatedSet
from planner.plans.assembly import host_layout, host_pool
from planner.requests.pinned import NOTHING_PINNED, Pinned
from planner.requests.schedules import Schedule
from planner.requests.specs import usable_fraction
from profiles.facts import Facts
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job
from rlplan.plan import TaskDraft
from rlplan.specs import NO_SPECS, Specs
from rlplan.transfers import TransitionName
from simulator.costs.traffic import data_bytes, transfer_cost
from simulator.placed.site import Site, host_site
from simulator.placed.task import PlacedTask
from simulator.stages import task_cost


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Hold what roles, sets and generations of a job cost; the facts are kept, so is their identity."""

    facts: Facts
    options: OptionTable
    pools: PoolTable
    generations: GenerationTable
    streams: StreamTable


# Fronts over several objectives and limits search one job again and again, a framework's in each of its ways.
REMEMBERED_JOBS = 8
_remembered: OrderedDict[Hashable, Tables] = OrderedDict()


@dataclass(frozen=True, eq=False)
class Space:
    """Hold a job's space of plans with the tables of what their parts cost.

    Attributes:
        drafts: Parts of tasks' layouts that the user pinned.
        specs: Limits that plans must keep.
        transition: The only one where it serves, on one pool or between two, if the user pinned it.
        pinned: What else the user pinned: pools.
        syncs: What is remembered of bringing weights to copies, by sizes and site.
        least_generations: The least seconds of generation known, by where weights train and by schedule.
        ways: What is remembered of ways to generate on a share with the rest of a pool.
    """

    job: Job
    facts: Facts
    drafts: Mapping[str, TaskDraft]
    objective: str
    specs: Specs
    transition: TransitionName | None = None
    pinned: Pinned = NOTHING_PINNED
    syncs: dict[tuple[int, int, int, int, int | None, Site], float] = field(default_factory=dict)
    least_generations: dict[Hashable, float] = field(default_factory=dict)
    ways: dict[Hashable, list[OptionRows]] = field(default_factory=dict)
    _sites: dict[Share, Site] = field(default_factory=dict)
    _set_shares: dict[ColocatedSet, tuple[Share, ...]] = field(default_factory=dict)
    _fetches: dict[str, float] = field(default_factory=dict)
    _hosted: dict[int, dict[Task, float]] = field(default_factory=dict)

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """Return the job's tasks."""
        return tasks_of(load_algorithm(self.job.algorithm), self.job)

    @cached_property
    def tally(self) -> Tally:
        """Return the counts of what was looked at and dropped."""
        return Tally()

    @cached_property
    def _tables(self) -> "Tables":
        """Return the tables of costs, which searches of one job share whatever they minimise."""
        usable = usable_fraction(self.specs)
        job = replace(self.job, objective="throughput", specs=NO_SPECS)
        arranged = self.pinned.arranged
        asked = (FrozenDict(self.drafts), self.transition, self.pinned.pool_gpus, arranged)
        key = (id(self.facts), job, usable, asked)
        if key not in _remembered:
            algorithm = load_algorithm(job.algorithm)
            layouts = LayoutSpace(
                job,
                priced_job(job),
                algorithm,
                self.tasks,
                self.facts,
                self.drafts,
                usable,
                self.pinned.pool_gpus,
                arranged,
            )
            options = OptionTable(layouts)
            drops = job.workload.drops_responses
            table = BegunTable if drops else GenerationTable
            generations = table(options, self.transition)
            streams = StreamTable(options, self.transition)
            pools = PoolTable(options)
            _remembered[key] = Tables(self.facts, options, pools, generations, streams)
            if len(_remembered) > REMEMBERED_JOBS:
                _remembered.popitem(last=False)
        return _remembered[key]

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
        if members not in self._set_shares:
            self._set_shares[members] = tuple(
                share
                for share in self.open_shares(members)
                if self.pools.least(members, self.site(share)).fits
            )
        return self._set_shares[members]

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
        num_bytes = data_bytes((key,), self.priced.workload)
        return min(transfer_cost(num_bytes, site, site, self.facts).seconds for site in one)


def generates_alone(members: ColocatedSet) -> bool:
    """Tell whether a set holds a copy that generates, whose weights are trained elsewhere."""
    return GENERATION in members
