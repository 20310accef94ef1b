"""Generation that begins more responses than are learnt from, and drops those that have not ended when enough have."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from rlplan.algorithms import load_algorithm
from rlplan.job import Workload
from rlplan.lengths import Empirical
from rlplan.results.forecast import CALL
from simulator.costs.taskcost import TaskCost
from simulator.generation.generating import Steps, played, replica_limits
from simulator.generation.replica import ReplicaLimits
from simulator.generation.shares import first_shares
from simulator.placed.task import PlacedTask
from simulator.workload.sequences import LengthStatistics

# About half a second of playing; where a batch has more, the first replicas stand for all.
PLAYED_SEQUENCES = 12_000
REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Enough:
    """Hold when enough responses have ended.

    Attributes:
        time_fraction: Of the time in which all of them end.
        responses: Tokens of the responses that have, in order.
    """

    time_fraction: float
    responses: tuple[int, ...]


def begun(placed: PlacedTask, batches: float = 1.0) -> PlacedTask:
    """Return a generate task whose batch is all that is begun for so many batches that are learnt from."""
    work = placed.workload
    prompts = math.ceil(work.prompts * work.over_provisioning * batches)
    if prompts == work.prompts:
        return placed
    work = replace(work, prompts=prompts, over_provisioning=1.0)
    return replace(placed, job=replace(placed.job, workload=work))


def cut_short(cost: TaskCost, found: Enough) -> TaskCost:
    """Return what generation costs until enough responses have ended.

    Args:
        cost: Until all that were begun have.
    """
    return TaskCost(
        tuple(
            (name, part if name == CALL else part * found.time_fraction)
            for name, part in cost.parts
        )
    )


def learnt(work: Workload, found: Enough) -> Workload:
    """Return the work of an iteration on the responses that ended first: the longest are the last."""
    return replace(work, response_tokens=Empirical(values=found.responses), over_provisioning=1.0)


def enough_of(placed: PlacedTask, kv_bytes: float | None) -> Enough:
    """Return when enough responses have ended of all that are begun.

    Args:
        kv_bytes: Bytes free for the KV cache on each GPU; None is as many as it can use.
    """
    whole = begun(placed)
    steps, limits = replica_limits(whole, kv_bytes)
    grouped = load_algorithm(placed.job.algorithm).groups
    unit = placed.workload.samples_per_prompt if grouped else 1
    fraction = placed.workload.prompts / whole.workload.prompts
    return _enough(steps, limits, whole.statistics, whole.layout.dp, unit, fraction)


@lru_cache(maxsize=REMEMBERED)
def _enough(
    steps: Steps,
    limits: ReplicaLimits,
    statistics: LengthStatistics,
    replicas: int,
    unit: int,
    fraction: float,
) -> Enough:
    """Return when a fraction of the units have ended, those of a prompt when the last of them has.

    Those that are dropped run beside the others until then, so that playing all of them to the end says when.
    """
    samples = statistics.workload.samples_per_prompt
    shares = first_shares(statistics, replicas, samples, PLAYED_SEQUENCES)
    ends = np.concatenate([played(steps, limits, share).finish_seconds for share in shares])
    responses = np.concatenate([np.asarray(share[1], dtype=np.int64) for share in shares])
    count = len(ends) // unit * unit
    unit_ends = ends[:count].reshape(-1, unit).max(axis=1)
    first = np.argsort(unit_ends, kind="stable")[: max(1, round(fraction * len(unit_ends)))]
    kept = responses[:count].reshape(-1, unit)[first]
    return Enough(
        float(unit_ends[first].max() / ends.max()), tuple(np.sort(kept, axis=None).tolist())
    )
