"""Generation that begins more responses than are learnt from, and drops those that have not ended when enough have."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import begun_work
from rlplan.results.forecast import CALL
from rlplan.workload.lengths import Empirical
from rlplan.workload.work import Workload
from simulator.costs.taskcost import TaskCost
from simulator.generation.generating import Steps, last_token_seconds, replica_limits
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
        dropped: Tokens of all responses of the prompts that were not done, in order; empty where none was left.
    """

    time_fraction: float
    responses: tuple[int, ...]
    dropped: tuple[int, ...]


def begun(placed: PlacedTask, batches: float = 1.0) -> PlacedTask:
    """Return a generate task whose batch is all that is begun for so many batches that are learnt from."""
    learnt_from = placed.workload
    work = begun_work(learnt_from, batches)
    if (work.prompts, work.samples_per_prompt) == (
        learnt_from.prompts,
        learnt_from.samples_per_prompt,
    ):
        return placed
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
    return _of_lengths(work, found.responses)


def put_off(work: Workload, found: Enough) -> Workload:
    """Return the work of an iteration on the prompts that were not done: their responses are as long again."""
    return _of_lengths(work, found.dropped)


def _of_lengths(work: Workload, tokens: tuple[int, ...]) -> Workload:
    lengths = Empirical(values=tokens)
    return replace(work, response_tokens=lengths, over_provisioning=1.0, over_sampling=1.0)


def enough_of(placed: PlacedTask, kv_bytes: float | None) -> Enough:
    """Return when enough responses have ended of all that are begun.

    Args:
        kv_bytes: Bytes free for the KV cache on each GPU; None is as many as it can use.
    """
    whole = begun(placed)
    steps, limits = replica_limits(whole, kv_bytes)
    learnt_from, all_begun = placed.workload, whole.workload
    if load_algorithm(placed.job.algorithm).groups:
        unit, needed = all_begun.samples_per_prompt, learnt_from.samples_per_prompt
        fraction = learnt_from.prompts / all_begun.prompts
    else:
        unit, needed, fraction = 1, 1, learnt_from.sequences / all_begun.sequences
    return _enough(steps, limits, whole.statistics, whole.layout.dp, unit, needed, fraction)


@lru_cache(maxsize=REMEMBERED)
def _enough(
    steps: Steps,
    limits: ReplicaLimits,
    statistics: LengthStatistics,
    replicas: int,
    unit: int,
    needed: int,
    fraction: float,
) -> Enough:
    """Return when a fraction of the units have ended, those of a prompt when as many as are needed have.

    Those that are dropped run beside the others until then, so that playing all of them to the end says when.
    """
    samples = statistics.workload.samples_per_prompt
    shares = first_shares(statistics, replicas, samples, PLAYED_SEQUENCES)
    ends = np.concatenate([last_token_seconds(steps, limits, share) for share in shares])
    responses = np.concatenate([np.asarray(share[1], dtype=np.int64) for share in shares])
    count = len(ends) // unit * unit
    by_unit, tokens = ends[:count].reshape(-1, unit), responses[:count].reshape(-1, unit)
    in_order = np.argsort(by_unit, axis=1, kind="stable")[:, :needed]
    unit_ends = np.take_along_axis(by_unit, in_order[:, -1:], axis=1)[:, 0]
    ranked = np.argsort(unit_ends, kind="stable")
    done = max(1, round(fraction * len(unit_ends)))
    kept = np.take_along_axis(tokens, in_order, axis=1)[ranked[:done]]
    return Enough(
        float(unit_ends[ranked[:done]].max() / ends.max()),
        _in_order(kept),
        _in_order(tokens[ranked[done:]]),
    )


def _in_order(tokens: npt.NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(np.sort(tokens, axis=None).tolist())
