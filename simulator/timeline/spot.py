"""Plans on nodes that may be taken away: what they take and cost on average.

Nodes are lost at random, independently of each other. The loss of a node that only generates stops one replica until
another node has come, its engine has started, and weights are synced to it (on average half an interval between syncs). The
replica's responses under way are lost, and other replicas begin them again. The share of time in which a replica makes tokens
that last is then

    (T - W) / (T + D)

with the mean time T between losses of any of its nodes, the W seconds of work that each loss throws away, and the D seconds
until it generates again. The plan is simulated once more with generation slowed down by the mean share of all replicas. W
follows from Little's law: each of N responses under way, at q tokens a second, has E[L^2] / (2 E[L]) tokens on average, the
mean age seen at a random time (Feller 1971, An Introduction to Probability Theory and Its Applications II, section I.4).

A loss of any other node stops the run, as failures do: it goes on from the last checkpoint (`utilisation`).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rlplan.calibration import Calibration, Factor
from rlplan.errors import MissingFactError
from rlplan.job import Failures, NodeGroup, Spot
from rlplan.plan import Plan, ResourcePool, first_gpus, pieces_at
from rlplan.profiles.facts import Facts
from rlplan.results.forecast import Forecast, GoodputForecast, SpotForecast
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.timeline.expenses import (
    LEAST_FRACTION,
    SECONDS_PER_HOUR,
    left_between,
    nodes_of,
)
from rlplan.simulator.workload import evenly

# Lengths that stand for a distribution's.
LENGTHS = 512
NO_FAILURES = (
    "each loss stops the run, and the job does not say what a checkpoint and a restart take; say it in job.failures "
    "(node_mtbf_seconds, checkpoint_seconds, restart_seconds), or train on nodes that stay"
)
Play = Callable[[Plan, Facts], Forecast]


@dataclass(frozen=True, slots=True)
class SpotPart:
    """Hold the part of a pool that stands on one group's spot nodes."""

    pool: ResourcePool
    group: NodeGroup
    spot: Spot
    gpus: int

    @property
    def nodes(self) -> int:
        """Return the nodes that it is on."""
        return -(-self.gpus // self.group.gpus_per_node)

    @property
    def losses_per_second(self) -> float:
        """Return how often any of its nodes is lost."""
        return self.nodes / self.spot.loss_every_seconds

    @property
    def away_seconds(self) -> float:
        """Return how long after a loss a worker is there again."""
        return self.spot.replacement_seconds + self.spot.start_seconds

    @property
    def present_fraction(self) -> float:
        """Return the share of the time in which a node is there, and paid for."""
        every = self.spot.loss_every_seconds
        return every / (every + self.spot.replacement_seconds)


def spot_parts(plan: Plan) -> list[SpotPart]:
    """Return the parts of a plan's pools that stand on spot nodes."""
    found = []
    for pool, first in first_gpus(plan):
        if pool.is_host:
            continue
        held: Counter[NodeGroup] = Counter()
        for group, size in pieces_at(plan.job, pool.device, first, pool.gpus):
            held[group] += size
        found += [
            SpotPart(pool, group, group.spot, gpus) for group, gpus in held.items() if group.spot
        ]
    return found


def with_spot(forecast: Forecast, placed: PlacedPlan, play: Play) -> Forecast:
    """Return a forecast with what losses of spot nodes leave of it, where its plan stands on any.

    Args:
        play: Returns the forecast of a plan without spot nodes.

    Raises:
        MissingFactError: A node that trains may be lost, and the job does not say what checkpoints and restarts take.
    """
    parts = spot_parts(placed.plan)
    return replace(forecast, spot=_spot(forecast, placed, parts, play)) if parts else forecast


def stopping_parts(plan: Plan) -> list[SpotPart]:
    """Return the parts on spot nodes whose loss stops the run: all but those of a pool that only generates."""
    alone = _only_generates(plan)
    return [part for part in spot_parts(plan) if part.pool.name not in alone]


def _only_generates(plan: Plan) -> set[str]:
    """Return the name of the pool that generates and does nothing else, where there is one."""
    others = {each.pool for name, each in plan.tasks.items() if name != "actor.generate"}
    return {plan.tasks["actor.generate"].pool} - others


def _spot(
    forecast: Forecast, placed: PlacedPlan, parts: list[SpotPart], play: Play
) -> SpotForecast:
    plan = placed.plan
    alone = _only_generates(plan)
    generating = [part for part in parts if part.pool.name in alone]
    stopping = [part for part in parts if part.pool.name not in alone]
    lost_seconds = lost_response_seconds(forecast, placed)
    share = _generating_fraction(generating, forecast, placed, lost_seconds)
    slowed = _slowed_seconds(forecast, placed, share, play)
    left = _goodput(plan, stopping, slowed)
    seconds = slowed if left is None else left.iteration_seconds
    usd_per_second = _usd_per_second(forecast, parts)
    run = _run_seconds(forecast, plan, seconds)
    return SpotForecast(
        pools=tuple(dict.fromkeys(part.pool.name for part in parts)),
        loss_every_seconds=1 / sum(part.losses_per_second for part in parts),
        generating_fraction=share,
        lost_response_seconds=lost_seconds if generating else 0.0,
        goodput=left,
        fraction=forecast.iteration_seconds / seconds if seconds else 0.0,
        iteration_seconds=seconds,
        cost_usd=usd_per_second * seconds if seconds else None,
        steady_usd=_steady_usd(placed) * forecast.iteration_seconds,
        run_seconds=run,
        run_usd=usd_per_second * run if run else None,
    )


def lost_response_seconds(forecast: Forecast, placed: PlacedPlan) -> float:
    """Return the seconds of a replica's work on its responses under way, on average at any time."""
    task, work = placed.generate, placed.plan.job.workload
    lengths = np.asarray(evenly(work.response_tokens, LENGTHS), dtype=float)
    mean, age = float(lengths.mean()), float((lengths**2).mean() / (2 * lengths.mean()))
    replicas = task.layout.dp
    rate = work.sequences * mean / (replicas * _generating_seconds(forecast, task.task.name))
    ahead = placed.plan.staleness + 1 if placed.plan.flow.is_endless else 1.0
    under_way = min(task.running, work.sequences * ahead / replicas)
    return under_way * age / rate


def _generating_seconds(forecast: Forecast, name: str) -> float:
    """Return the seconds of an iteration in which a replica generates."""
    if forecast.overlap is not None:
        return forecast.iteration_seconds * (1 - forecast.overlap.generator_waits_fraction)
    return next(cost.seconds for cost in forecast.costs if cost.name == name)


def _generating_fraction(
    parts: list[SpotPart], forecast: Forecast, placed: PlacedPlan, lost_seconds: float
) -> float:
    """Return the share of what all replicas would generate that lasts."""
    plan, layout = placed.plan, placed.generate.layout
    replica_gpus = layout.gpus // layout.dp
    sync_wait = forecast.iteration_seconds * plan.sync_every / 2
    missing = 0.0
    for part in parts:
        nodes = -(-replica_gpus // part.group.gpus_per_node)
        between = part.spot.loss_every_seconds / nodes
        lasts = max(0.0, between - lost_seconds) / (between + part.away_seconds + sync_wait)
        missing += part.gpus / part.pool.gpus * (1 - lasts)
    return max(0.0, 1 - missing)


def _slowed_seconds(
    forecast: Forecast, placed: PlacedPlan, share: float, play: Play
) -> float | None:
    """Return an iteration's seconds with generation that is slower by a share; None without any."""
    if share < LEAST_FRACTION:
        return None
    if share == 1:
        return forecast.iteration_seconds
    plan, facts = placed.plan, placed.facts
    cluster = tuple(replace(group, spot=None) for group in plan.job.cluster)
    steady = replace(plan, job=replace(plan.job, cluster=cluster))
    known = facts.calibration
    engine = plan.tasks["actor.generate"].engine
    slower = play(
        steady, facts.with_calibration(_slower(known, engine, 1 / share))
    ).iteration_seconds
    return max(slower, forecast.iteration_seconds)


def _slower(known: Calibration, engine: str, times: float) -> Calibration:
    """Return a site at which generation by an engine takes longer."""
    own = known.factor("generation", engine) or Factor()
    slower = replace(own, value=own.value * times)
    return replace(known, engines=known.engines.with_item(engine, slower))


def _goodput(
    plan: Plan, stopping: list[SpotPart], iteration_seconds: float | None
) -> GoodputForecast | None:
    """Return what losses of nodes that train, and failures, leave of iterations; None where nothing stops them."""
    failures = plan.job.failures
    if failures is None and stopping:
        names = ", ".join(dict.fromkeys(part.pool.name for part in stopping))
        raise MissingFactError(f"pool {names} trains on spot nodes: {NO_FAILURES}")
    if failures is None:
        return None
    there, between = stops_of(plan, failures)
    if iteration_seconds is not None:
        return left_between(there, between, iteration_seconds)
    return GoodputForecast(
        fraction=0.0,
        failure_every_seconds=between,
        checkpoint_every=failures.checkpoint_every or 1,
        iteration_seconds=None,
    )


def stops_of(plan: Plan, failures: Failures) -> tuple[Failures, float]:
    """Return failures as they are with losses of spot nodes that stop the run among them, and the seconds between two.

    Their restart is the mean one: behind a loss it begins when another node is there and has started.
    """
    between = failures.node_mtbf_seconds / nodes_of(plan)
    stopping = stopping_parts(plan)
    if not stopping:
        return failures, between
    between = 1 / (sum(part.losses_per_second for part in stopping) + 1 / between)
    away = sum(part.losses_per_second * part.away_seconds for part in stopping) * between
    return replace(failures, restart_seconds=failures.restart_seconds + away), between


def _usd_per_second(forecast: Forecast, parts: list[SpotPart]) -> float:
    """Return what all pools cost, spot nodes only while they are there."""
    whole = forecast.cost_usd / forecast.iteration_seconds
    away = 0.0
    for part in parts:
        price = part.group.usd_per_gpu_hour
        assert price is not None, "a job's check asks for the price of spot nodes"
        away += part.gpus * price / SECONDS_PER_HOUR * (1 - part.present_fraction)
    return whole - away


def _steady_usd(placed: PlacedPlan) -> float:
    """Return what a second costs on nodes that all stay: those of spot groups at their device's list price."""
    usd = 0.0
    for pool, first in first_gpus(placed.plan):
        if pool.is_host:
            continue
        sheet = placed.facts.device(pool.device).sheet
        for group, size in pieces_at(placed.plan.job, pool.device, first, pool.gpus):
            own = None if group.spot else group.usd_per_gpu_hour
            usd += size * (sheet.usd_per_hour if own is None else own)
    return usd / SECONDS_PER_HOUR


def _run_seconds(forecast: Forecast, plan: Plan, seconds: float | None) -> float | None:
    """Return the seconds of the whole run, validations and checkpoints included as far as they are known."""
    if seconds is None or plan.job.iterations is None:
        return None
    return plan.job.iterations * (seconds + forecast.beside_seconds)
