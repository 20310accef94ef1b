"""What iterations are worth: bounds on the objective's figure, and on those that the job limits.

Each figure is linear in seconds (`rlplan.planner.objectives`): of the iteration for every GPU that is held, and on
top of the seconds in which a pool computes or moves bytes, its work. Seconds come with candidates; work is
added up pool by pool, in a column for every figure that counts it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rlplan.job import Job, Specs
from rlplan.plan import HOST_DEVICE
from rlplan.planner.objectives import Objective, SecondRates, limited_objectives, load_objective
from rlplan.planner.requests.schedules import Schedule
from rlplan.planner.requests.specs import ROUNDING
from rlplan.profiles.facts import Facts
from rlplan.simulator.columns import Floats, Ints
from rlplan.simulator.timeline.expenses import SECONDS_PER_HOUR, PoolRates, pool_rates


@dataclass(frozen=True, slots=True, eq=False)
class HostWorkers:
    """Say how many processes the tasks without a model have in plans of so many GPUs, and what they work.

    Attributes:
        cores: By device, those of the nodes on which so many of its GPUs stand. Shape (GPUs + 1,), each.
        limit: No plan has more.
        seconds: What so many processes work in an iteration.
    """

    cores: tuple[Ints, ...]
    limit: int
    seconds: Callable[[int], float]

    def of(self, used: Ints) -> Ints:
        """Return the processes of plans.

        Args:
            used: GPUs by device; any shape and one more for devices.
        """
        cores = sum(
            own[np.minimum(used[..., place], len(own) - 1)] for place, own in enumerate(self.cores)
        )
        return np.asarray(np.clip(cores, 1, self.limit))

    def gaining(self, used: Ints) -> Ints:
        """Return what GPUs count for as long as more of them bring more processes. Shape as `used`."""
        every = np.array([len(own) for own in self.cores])
        return np.where((self.of(used) >= self.limit)[..., None], every, used)

    @property
    def least(self) -> int:
        """Return the processes of the plan with fewest."""
        least = min(int(own[min(1, len(own) - 1)]) for own in self.cores)
        return max(1, min(least, self.limit))

    @property
    def most(self) -> int:
        """Return the processes of a plan on all GPUs."""
        return max(1, min(sum(int(own[-1]) for own in self.cores), self.limit))

    def work_seconds(self, workers: Ints) -> Floats:
        """Return what all processes of plans work together. Shape as `workers`."""
        numbers, places = np.unique(workers, return_inverse=True)
        each = np.array([number * self.seconds(int(number)) for number in numbers])
        return np.asarray(each[places.reshape(workers.shape)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Figure:
    """Hold what seconds add to one figure of an iteration.

    Attributes:
        held, computing, moving: For one GPU of each device. Shape (devices,).
        host_held: For every second of the iteration, whatever the GPUs are; the fewest workers of the
            reward function included.
        worker_held: For every second, for each worker of the reward function.
        worker_computing: On top, for every second that one of them works.
        limit: The most that the figure may be; None sets none.
    """

    held: Floats
    computing: Floats
    moving: Floats
    host_held: float
    worker_held: float
    worker_computing: float
    limit: float | None

    @property
    def counts_work(self) -> bool:
        """Tell whether it matters how long pools work, not only how long they are held."""
        return bool(self.computing.any() or self.moving.any())

    @property
    def counts_workers(self) -> bool:
        """Tell whether it matters how many processes reward functions have."""
        return self.worker_held > 0 or self.worker_computing > 0

    @property
    def counts_gpus(self) -> bool:
        """Tell whether it matters how many GPUs are held."""
        return bool(self.held.any())


# What would be paid for a pool of which nothing but its price counts.
ONE_USD = PoolRates(usd_per_second=1.0, idle_watts=0.0, computing_watts=0.0, moving_watts=0.0)


class Score:
    """Bound what iterations are worth to an objective, and say whether they can keep the specs.

    Values are those of a whole iteration: seconds, USD or joules.

    Args:
        devices: Of the cluster, in the order of `OtherPools.used`.
        workers: Processes of tasks without a model; None where there are none.

    Attributes:
        weighed: The objective, then those whose figures the specs limit.
        figures: Theirs.
        computing, moving: What a second of a GPU's work adds, by device and by figure that counts work.
    """

    def __init__(
        self,
        job: Job,
        facts: Facts,
        objective: str,
        specs: Specs,
        devices: tuple[str, ...],
        workers: HostWorkers | None,
    ) -> None:
        self.job, self.objective, self.specs = job, load_objective(objective), specs
        self.devices = devices
        self.workers = workers
        limited = [name for spec, name in limited_objectives().items() if spec in specs.given]
        self.gpu_rates = [pool_rates(job, facts, device, 1) for device in devices]
        self.host_rates = pool_rates(job, facts, HOST_DEVICE, 1) if workers else None
        self.weighed = tuple(load_objective(name) for name in dict.fromkeys((objective, *limited)))
        self.figures = tuple(map(self._figure, self.weighed))
        counted = [figure for figure in self.figures if figure.counts_work]
        self.computing, self.moving = (
            np.array([getattr(figure, name) for figure in counted]).reshape(-1, len(devices)).T
            for name in ("computing", "moving")
        )

    @property
    def counts_money(self) -> bool:
        """Tell whether a price may decide which of two plans is worth more, or keeps the specs."""
        if self.specs.usd_per_hour is not None:
            return True
        return any(each.pool_rates(ONE_USD) != SecondRates() for each in self.weighed)

    @property
    def counts_only_seconds(self) -> bool:
        """Tell whether of two plans the one with the shorter iteration is always worth more."""
        return self.minimises_seconds and not self.specs.given

    @property
    def minimises_seconds(self) -> bool:
        """Tell whether of two plans that keep the specs the one with the shorter iteration is worth more."""
        return not (self.figures[0].counts_gpus or self.figures[0].counts_work)

    def least_factor(self, schedule: Schedule) -> float:
        """Return what the objective's figure is multiplied with at least in plans with a schedule; 1 or more."""
        if self.objective.least_factor is None:
            return 1.0
        return self.objective.least_factor(self.job, schedule.flow, schedule.sync_every)

    def values(self, seconds: Floats, used: Ints, work: Floats, factor: float = 1.0) -> Floats:
        """Return bounds on values from bounds on seconds and work; infinite where specs rule out.

        Args:
            seconds: Of iterations; any shape.
            factor: What the objective's figure is multiplied with at least (`least_factor`).
            used: GPUs by device; the shape of `seconds` and one more for devices.
            work: Of the pools, by figure that counts it; the shape of `seconds` and one more.
        """
        columns = iter(range(work.shape[-1]))
        least = []
        for figure in self.figures:
            rate: Floats = np.asarray(used @ figure.held if figure.counts_gpus else 0.0)
            rate = np.asarray(rate + figure.host_held)
            worked: Floats | float = 0.0
            if figure.counts_workers and self.workers is not None:
                workers = self.workers.of(used)
                more = figure.worker_held * (workers - self.workers.least)
                rate = np.asarray(rate + more)
                worked = figure.worker_computing * self.workers.work_seconds(workers)
            value = seconds * rate + worked
            if figure.counts_work:
                value = value + work[..., next(columns)]
            least.append((figure.limit, value))
        found = least[0][1] * factor
        least[0] = (least[0][0], found)
        if self.specs.gpus is not None:
            least.append((self.specs.gpus, used.sum(axis=-1)))
        if self.specs.usd_per_hour is not None:
            usd_per_second = np.array([each.usd_per_second for each in self.gpu_rates])
            least.append((self.specs.usd_per_hour, used @ usd_per_second * SECONDS_PER_HOUR))
        for limit, value in least:
            if limit is not None:
                found = np.where(value > limit * (1 + ROUNDING), np.inf, found)
        return np.asarray(found)

    def _figure(self, objective: Objective) -> Figure:
        rates = [objective.pool_rates(each) for each in self.gpu_rates]
        host, least = SecondRates(), 0
        if self.host_rates is not None and self.workers is not None:
            host, least = objective.pool_rates(self.host_rates), self.workers.least
        return Figure(
            held=np.array([each.held for each in rates]),
            computing=np.array([each.computing for each in rates]),
            moving=np.array([each.moving for each in rates]),
            host_held=objective.seconds_rate + host.held * least,
            worker_held=host.held,
            worker_computing=host.computing,
            limit=self.specs.given.get(objective.limit or ""),
        )
