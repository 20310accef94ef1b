"""What iterations are worth: bounds on the objective's figure, and on those that the job limits.

Each figure is linear in seconds (`planner.objectives`): of the iteration for every GPU that is held, and on
top of the seconds in which a pool computes or moves bytes, its work. Seconds come with candidates; work is
added up pool by pool, in a column for every figure that counts it.
"""

from dataclasses import dataclass

import numpy as np

from planner.objectives import Objective, limited_objectives, load_objective
from planner.requests.specs import ROUNDING
from profiles.facts import Facts
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE
from rlplan.specs import Specs
from simulator.placed.columns import Floats, Ints
from simulator.timeline.expenses import SECONDS_PER_HOUR, pool_rates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Figure:
    """Hold what seconds add to one figure of an iteration.

    Attributes:
        held, computing, moving: For one GPU of each device. Shape (devices,).
        host_held: For every second of the iteration, whatever the GPUs are; workers of the reward
            function included.
        host_work: Of the reward function's own work, the whole iteration's.
        limit: The most that the figure may be; None sets none.
    """

    held: Floats
    computing: Floats
    moving: Floats
    host_held: float
    host_work: float
    limit: float | None

    @property
    def counts_work(self) -> bool:
        """Tell whether it matters how long pools work, not only how long they are held."""
        return bool(self.computing.any() or self.moving.any())

    @property
    def counts_gpus(self) -> bool:
        """Tell whether it matters how many GPUs are held."""
        return bool(self.held.any())


class Score:
    """Bound what iterations are worth to an objective, and say whether they can keep the specs.

    Values are those of a whole iteration: seconds, USD or joules.

    Args:
        devices: Of the cluster, in the order of `OtherPools.used`.
        workers: Processes of tasks without a model.
        host_seconds: What they work.

    Attributes:
        figures: The objective's first, then those that the specs limit.
        computing, moving: What a second of a GPU's work adds, by device and by figure that counts work.
    """

    def __init__(
        self,
        job: Job,
        facts: Facts,
        objective: str,
        specs: Specs,
        devices: tuple[str, ...],
        workers: int,
        host_seconds: float,
    ) -> None:
        self.objective, self.specs, self.devices = load_objective(objective), specs, devices
        limited = [name for spec, name in limited_objectives().items() if spec in specs.given]
        self.gpu_rates = [pool_rates(job, facts, device, 1) for device in devices]
        self.host_rates = pool_rates(job, facts, HOST_DEVICE, workers) if workers else None
        self.figures = tuple(
            self._figure(load_objective(name), host_seconds)
            for name in dict.fromkeys((objective, *limited))
        )
        counted = [figure for figure in self.figures if figure.counts_work]
        self.computing, self.moving = (
            np.array([getattr(figure, name) for figure in counted]).reshape(-1, len(devices)).T
            for name in ("computing", "moving")
        )

    @property
    def counts_only_seconds(self) -> bool:
        """Tell whether of two plans the one with the shorter iteration is always worth more."""
        return self.minimises_seconds and not self.specs.given

    @property
    def minimises_seconds(self) -> bool:
        """Tell whether of two plans that keep the specs the one with the shorter iteration is worth more."""
        return not (self.figures[0].counts_gpus or self.figures[0].counts_work)

    def values(self, seconds: Floats, used: Ints, work: Floats) -> Floats:
        """Return bounds on values from bounds on seconds and work; infinite where specs rule out.

        Args:
            seconds: Of iterations; any shape.
            used: GPUs by device; the shape of `seconds` and one more for devices.
            work: Of the pools, by figure that counts it; the shape of `seconds` and one more.
        """
        columns = iter(range(work.shape[-1]))
        least = []
        for figure in self.figures:
            rate = used @ figure.held if figure.counts_gpus else 0.0
            value = seconds * (rate + figure.host_held)
            if figure.counts_work:
                value = value + work[..., next(columns)] + figure.host_work
            least.append((figure.limit, value))
        found = least[0][1]
        if self.specs.gpus is not None:
            least.append((self.specs.gpus, used.sum(axis=-1)))
        if self.specs.usd_per_hour is not None:
            usd_per_second = np.array([each.usd_per_second for each in self.gpu_rates])
            least.append((self.specs.usd_per_hour, used @ usd_per_second * SECONDS_PER_HOUR))
        for limit, value in least:
            if limit is not None:
                found = np.where(value > limit * (1 + ROUNDING), np.inf, found)
        return np.asarray(found)

    def _figure(self, objective: Objective, host_seconds: float) -> Figure:
        rates = [objective.pool_rates(each) for each in self.gpu_rates]
        held = work = 0.0
        if self.host_rates is not None:
            host = objective.pool_rates(self.host_rates)
            held, work = host.held, host.computing * host_seconds
        return Figure(
            held=np.array([each.held for each in rates]),
            computing=np.array([each.computing for each in rates]),
            moving=np.array([each.moving for each in rates]),
            host_held=objective.seconds_rate + held,
            host_work=work,
            limit=self.specs.given.get(objective.limit or ""),
        )
