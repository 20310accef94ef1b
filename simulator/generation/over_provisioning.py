"""Generation that begins more responses than are learnt from, and drops those that have not ended when enough have."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import begun_of, rounds_together
from rlplan.job import Job
from rlplan.results.forecast import CALL
from rlplan.simulator.costs.taskcost import TaskCost
from rlplan.simulator.generation.generating import Steps, begun, last_token_seconds, replica_limits
from rlplan.simulator.generation.replica import ReplicaLimits
from rlplan.simulator.generation.shares import first_shares
from rlplan.simulator.placed import PlacedTask
from rlplan.simulator.workload import LengthStatistics
from rlplan.workload import Empirical, Workload

# About half a second of playing; where a batch has more, the first replicas stand for all.
PLAYED_SEQUENCES = 12_000
REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class LearntResponses:
    """Hold which responses of a begun batch are learnt from: those of the units that are done first.

    Attributes:
        unit: Responses that are learnt from together, or not at all: those of a prompt where they are compared.
        needed: Of a unit, those that end first; with them it is done.
        fraction: Of the units, with those that a filter leaves out.
    """

    unit: int
    needed: int
    fraction: float

    def done(self, units: int) -> int:
        """Return how many of so many units are learnt from."""
        return max(1, round(self.fraction * units))


def kept_of(job: Job) -> LearntResponses:
    """Return which responses of a batch that a job begins it learns from."""
    learnt_from, whole, waited = job.workload, begun_of(job), rounds_together(job)
    if load_algorithm(job.algorithm).groups:
        fraction = min(1.0, waited * learnt_from.prompts / whole.prompts)
        return LearntResponses(whole.samples_per_prompt, learnt_from.samples_per_prompt, fraction)
    return LearntResponses(1, 1, min(1.0, waited * learnt_from.sequences / whole.sequences))


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Hold the instant at which enough responses have ended, and generation stops early.

    Attributes:
        time_fraction: That instant, as a share of the time until all responses have ended.
        responses: Tokens of the responses that have ended by then, ascending.
        dropped: Tokens of all responses of the prompts that are not complete by then, ascending; empty if there are none.
    """

    time_fraction: float
    responses: tuple[int, ...]
    dropped: tuple[int, ...]


def cost_until_enough(cost: TaskCost, placed: PlacedTask, kv_bytes: float) -> TaskCost:
    """Return what a generate task costs until as many responses have ended as are learnt from.

    Args:
        cost: Until all that were begun have.
        kv_bytes: Bytes free for the KV cache on each GPU.
    """
    if not placed.workload.drops_responses:
        return cost
    fraction = enough_of(placed, kv_bytes).time_fraction
    return TaskCost(
        tuple((name, part if name == CALL else part * fraction) for name, part in cost.parts)
    )


def learnt(work: Workload, found: EarlyStop) -> Workload:
    """Return the work of an iteration on the responses that ended first: the longest are the last."""
    return _of_lengths(work, found.responses)


def put_off(work: Workload, found: EarlyStop) -> Workload:
    """Return the work of an iteration on the prompts that were not done: their responses are as long again."""
    return _of_lengths(work, found.dropped)


def _of_lengths(work: Workload, tokens: tuple[int, ...]) -> Workload:
    lengths = Empirical(values=tokens)
    return replace(work, response_tokens=lengths, over_provisioning=1.0, over_sampling=1.0)


def enough_of(placed: PlacedTask, kv_bytes: float | None) -> EarlyStop:
    """Return when enough responses have ended of all that are begun.

    Args:
        kv_bytes: Bytes free for the KV cache on each GPU; None is as many as it can use.
    """
    whole = begun(placed)
    steps, limits = replica_limits(whole, kv_bytes)
    return _enough(steps, limits, whole.statistics, whole.layout.dp, kept_of(placed.job))


@lru_cache(maxsize=REMEMBERED)
def _enough(
    steps: Steps,
    limits: ReplicaLimits,
    statistics: LengthStatistics,
    replicas: int,
    kept: LearntResponses,
) -> EarlyStop:
    """Return when a fraction of the units have ended, those of a prompt when as many as are needed have.

    Those that are dropped run beside the others until then, so that playing all of them to the end says when.
    """
    samples = statistics.workload.samples_per_prompt
    shares = first_shares(statistics, replicas, samples, PLAYED_SEQUENCES)
    ends = np.concatenate([last_token_seconds(steps, limits, share) for share in shares])
    responses = np.concatenate([np.asarray(share[1], dtype=np.int64) for share in shares])
    count = len(ends) // kept.unit * kept.unit
    by_unit, tokens = (each[:count].reshape(-1, kept.unit) for each in (ends, responses))
    in_order = np.argsort(by_unit, axis=1, kind="stable")[:, : kept.needed]
    unit_ends = np.take_along_axis(by_unit, in_order[:, -1:], axis=1)[:, 0]
    ranked = np.argsort(unit_ends, kind="stable")
    done = kept.done(len(unit_ends))
    learnt_from = np.take_along_axis(tokens, in_order, axis=1)[ranked[:done]]
    return EarlyStop(
        float(unit_ends[ranked[:done]].max() / ends.max()),
        _in_order(learnt_from),
        _in_order(tokens[ranked[done:]]),
    )


def _in_order(tokens: npt.NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(np.sort(tokens, axis=None).tolist())
