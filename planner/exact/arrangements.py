"""Level 2 of the search: how the pools beside the one that generates share the rest of the cluster.

An arrangement gives every one of these sets a share and layouts. Of all arrangements only those matter
that no other beats in the GPUs it takes and in the stages, each of which ends when its slowest pool ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from planner.layouts.pareto import Places, front_rows
from planner.requests.objectives import Objective
from planner.requests.specs import ROUNDING
from profiles.facts import Facts
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE
from rlplan.specs import Specs
from simulator.costs.layout_columns import Floats, Ints
from simulator.timeline.expenses import pool_rates


@dataclass(frozen=True, slots=True, eq=False)
class Arrangements:
    """Hold arrangements of some sets, one row each.

    Attributes:
        used: GPUs by device; shape (rows, devices).
        prepare, train: Seconds until the stage's slowest pool is done.
        sender_prepare, sender_train: Seconds of the stages' work on the pool that sends new weights to
            a copy, where iterations overlap; else zero.
        joules: Energy of the pools' work, idle power aside.
        picks: For each set its share's place and its row; shape (rows, sets, 2).
    """

    used: Ints
    prepare: Floats
    train: Floats
    sender_prepare: Floats
    sender_train: Floats
    joules: Floats
    picks: Ints

    def __len__(self) -> int:
        return len(self.prepare)

    def rows(self, chosen: Places) -> "Arrangements":
        """Return the chosen rows."""
        return Arrangements(
            self.used[chosen],
            self.prepare[chosen],
            self.train[chosen],
            self.sender_prepare[chosen],
            self.sender_train[chosen],
            self.joules[chosen],
            self.picks[chosen],
        )


def no_sets(devices: int) -> Arrangements:
    """Return the one arrangement of no sets."""
    return Arrangements(
        np.zeros((1, devices), dtype=np.int64),
        np.zeros(1),
        np.zeros(1),
        np.zeros(1),
        np.zeros(1),
        np.zeros(1),
        np.zeros((1, 0, 2), dtype=np.int64),
    )


class Score:
    """Say what iterations are worth to an objective and whether they can keep the specs.

    Values are those of a whole iteration: seconds, USD or joules.

    Args:
        devices: Of the cluster, in the order of `Arrangements.used`.
        rule_seconds: What the reward function's own processes work.
        workers: Their number.
    """

    def __init__(
        self,
        job: Job,
        facts: Facts,
        objective: Objective,
        specs: Specs,
        devices: tuple[str, ...],
        workers: int,
        rule_seconds: float,
    ) -> None:
        self.objective, self.specs = objective, specs
        rates = [pool_rates(job, facts, device, 1) for device in devices]
        self.usd_per_second = np.array([rate.usd_per_second for rate in rates])
        self.idle_watts = np.array([rate.idle_watts for rate in rates])
        self.computing_watts = np.array([rate.computing_watts for rate in rates])
        self.moving_watts = np.array([rate.moving_watts for rate in rates])
        self.host_watts = self.host_joules = 0.0
        if workers:
            host = pool_rates(job, facts, HOST_DEVICE, workers)
            self.host_watts, self.host_joules = (
                host.idle_watts,
                host.computing_watts * rule_seconds,
            )
        limited = specs.energy_joules is not None
        self.counts_joules = limited or objective.name == "energy"

    def values(self, seconds: Floats, used: Ints, joules: Floats) -> Floats:
        """Return bounds on values from bounds on seconds and work; infinite where specs rule out.

        Args:
            seconds: Of iterations; any shape.
            used: GPUs by device; the shape of `seconds` and one more for devices.
            joules: Energy of the pools' work, idle power aside.
        """
        usd = seconds * (used @ self.usd_per_second)
        energy = seconds * (used @ self.idle_watts + self.host_watts) + joules + self.host_joules
        found = {"throughput": seconds, "cost": usd, "energy": energy}[self.objective.name]
        specs = self.specs
        for limit, least in (
            (specs.iteration_seconds, seconds),
            (specs.gpus, used.sum(axis=-1)),
            (specs.cost_usd, usd),
            (specs.usd_per_hour, used @ self.usd_per_second * 3600),
            (specs.energy_joules, energy),
        ):
            if limit is not None:
                found = np.where(least > limit * (1 + ROUNDING), np.inf, found)
        return np.asarray(found)


def joined(
    left: Arrangements,
    right: Arrangements,
    limits: Ints,
    least_generation_seconds: float,
    worth: float,
    score: Score,
) -> Arrangements:
    """Return the arrangements of both sides' sets that can still be worth something.

    Args:
        limits: GPUs of each device that they may take together.
        least_generation_seconds: No iteration generates faster.
        worth: Values that are no less are of no use.
    """
    first = np.repeat(np.arange(len(left)), len(right))
    second = np.tile(np.arange(len(right)), len(left))
    used = left.used[first] + right.used[second]
    fits = np.all(used <= limits, axis=1)
    first, second, used = first[fits], second[fits], used[fits]
    prepare = np.maximum(left.prepare[first], right.prepare[second])
    train = np.maximum(left.train[first], right.train[second])
    sender_prepare = np.maximum(left.sender_prepare[first], right.sender_prepare[second])
    sender_train = np.maximum(left.sender_train[first], right.sender_train[second])
    joules = left.joules[first] + right.joules[second]
    values = score.values(least_generation_seconds + prepare + train, used, joules)
    kept = np.flatnonzero(values < worth)
    seconds = np.stack([prepare, train, sender_prepare, sender_train], axis=1)
    keys = [used[kept], seconds[kept]]
    if score.counts_joules:
        keys.append(joules[kept, None])
    kept = kept[front_rows(np.concatenate(keys, axis=1))]
    first, second = first[kept], second[kept]
    return Arrangements(
        used[kept],
        prepare[kept],
        train[kept],
        sender_prepare[kept],
        sender_train[kept],
        joules[kept],
        np.concatenate([left.picks[first], right.picks[second]], axis=1),
    )


def stacked(parts: Iterable[Arrangements], devices: int, sets: int) -> Arrangements:
    """Return the rows of all parts together."""
    some = list(parts)
    if not some:
        none = np.zeros(0)
        return Arrangements(
            np.zeros((0, devices), dtype=np.int64),
            none,
            none,
            none,
            none,
            none,
            np.zeros((0, sets, 2), dtype=np.int64),
        )
    return Arrangements(
        *(
            np.concatenate([getattr(each, name) for each in some])
            for name in (field.name for field in fields(Arrangements))
        )
    )
