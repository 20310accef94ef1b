"""Moves of a run whose replicas come and go: which pools stay, with how many devices plans generate, and what of the iterations left."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rlplan.errors import PlanError
from rlplan.plan import FLOWS, Plan
from rlplan.planner.adapting.window import planned_mean
from rlplan.planner.placements.partitions import (
    GENERATION,
    ColocatedSet,
    in_role_order,
    placed_roles,
)
from rlplan.planner.requests.pinned import Pinned, PinnedPool
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.replicas import (
    GENERATE,
    ReplicaChoice,
    ReplicaDevices,
    ReplicaSchedule,
    replica_gpus,
    with_replicas,
)
from rlplan.rules.batches import divides_prompts

# Modes in which replicas come and go.
MODES: Final = tuple(name for name, flow in FLOWS.items() if flow.by_sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """Hold how many devices replicas of a run have when, and the run's plan.

    Attributes:
        plan: With as many replicas as it has at most; what was measured is of those that generated.
    """

    devices: ReplicaDevices
    plan: Plan

    def pinned(self, gpus: int) -> Pinned:
        """Return what a search keeps: every pool with its models, so many devices that generate, and an endless stream.

        Who is there when is a circumstance of the run: what stays has no devices for others, and what comes and goes none that stay.
        """
        plan, home = self.plan, self.plan.tasks[GENERATE].pool
        roles = placed_roles(plan.job)
        pools = []
        for pool in plan.pools:
            if pool.is_host:
                continue
            members: ColocatedSet = in_role_order(pool.roles, roles)
            count = pool.gpus
            if pool.name == home:
                members, count = (GENERATION,), gpus
            pools.append(
                PinnedPool(members=members, name=pool.name, device=pool.device, gpus=count)
            )
        asked = AskedSchedules(modes=MODES)
        if plan.flow.is_endless:
            asked = AskedSchedules(modes=(plan.mode,), in_flight=plan.in_flight)
        return Pinned(pools=tuple(pools), asked=asked)

    def usual_gpus(self, first: int, last: int) -> int:
        """Return with how many devices most iterations generate between two, the later number where it is open."""
        counts = dict[int, int]()
        for begin, end, gpus in self.devices.spans(first, last):
            counts[gpus] = counts.get(gpus, 0) + end - begin
        return max(reversed(counts), key=lambda gpus: counts[gpus])

    def shares(self, first: int, last: int) -> Sequence[tuple[int, tuple[float, float, float]]]:
        """Return by what a mean over the iterations between two takes gains with numbers of devices: at the first, middle and last.

        The integral over each stretch of the parabola through the three; with one number Simpson's rule, 1/6, 4/6 and 1/6.
        """
        whole = max(1, last - first)
        return [
            (gpus, _weights((begin - first) / whole, (end - first) / whole))
            for begin, end, gpus in self.devices.spans(first, max(last, first + 1))
        ]

    def filled(self, plan: Plan) -> Plan:
        """Return a plan with as many replicas as all of the run's devices hold; the next smaller number that has a forecast."""
        return on_devices(self.devices.filled_by(plan), self.devices.gpus)

    def whole(self, way: Plan) -> Plan:
        """Return the run's plan with as many replicas as it has at most, at another plan's lengths."""
        own = self.plan.job.workload.environments
        workload = replace(way.job.workload, environments=own)
        return replace(self.plan, job=replace(way.job, workload=workload))


def expected_devices(
    choice: ReplicaChoice, plan: Plan, replicas: int, done: int, iterations: int
) -> ReplicaDevices:
    """Return how many devices replicas are expected to have, where forecasts choose their number by lengths.

    As many as generate now and, where the job plans that lengths grow, from each iteration on in which another number pays at the planned
    ones, that number.

    Args:
        plan: The run's, with as many replicas as it has at most.
        replicas: That generate now.
        done: Iterations that are done.
        iterations: Of the run in all.
    """
    table, counts = choice.table_of(plan), {0: replicas}
    before: int | None = None
    for iteration in range(done, iterations):
        mean = planned_mean(plan, iteration + 1, iterations)
        if mean is None:
            break
        pays = table.row_of(mean).replicas
        if before not in {None, pays}:
            counts[iteration] = pays
        before = pays
    return ReplicaDevices(
        schedule=ReplicaSchedule(counts=tuple(counts.items())),
        gpus_each=replica_gpus(plan),
        gpus=choice.devices.gpus,
    )


def _weights(begin: float, end: float) -> tuple[float, float, float]:
    """Return the integrals from one share of a stretch to another of Lagrange's parabolas on its beginning, middle and end."""

    def until(at: float) -> tuple[float, float, float]:
        squares, cubes = at * at, at * at * at
        return (
            2 * cubes / 3 - 3 * squares / 2 + at,
            2 * squares - 4 * cubes / 3,
            2 * cubes / 3 - squares / 2,
        )

    first, middle, last = (
        after - before for before, after in zip(until(begin), until(end), strict=True)
    )
    return first, middle, last


def generating_gpus(plan: Plan) -> int:
    """Return how many devices a plan's replicas have."""
    return plan.tasks[GENERATE].dp * replica_gpus(plan)


def on_devices(plan: Plan, gpus: int) -> Plan:
    """Return a plan with as many of its replicas as so many devices hold; the next smaller number that has a forecast.

    The executor's own engine shares prompts out in equal parts, and a forecast is of a plan that it carries out.

    Raises:
        PlanError: They hold none.
    """
    fits = min(plan.tasks[GENERATE].dp, gpus // replica_gpus(plan))
    if not fits:
        raise PlanError(f"{gpus} devices hold no replica of {replica_gpus(plan)}")
    work = plan.job.workload
    return with_replicas(plan, next(n for n in range(fits, 0, -1) if divides_prompts(n, work)))
